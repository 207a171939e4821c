"""Replicas of one server behind one address: which of them a request goes to, and what becomes of it where that one
dies. What starts them and carries messages between processes is somebody else's (`sscc.compiler.tools.fleet`)."""
