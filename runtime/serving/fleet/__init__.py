"""Replicas of a server behind one address: choice of the replica for a request, and recovery when a replica dies.
Starting replicas and communication between processes are separate (`sscc.compiler.tools.fleet`)."""
