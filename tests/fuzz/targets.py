"""The table of targets: name -> "module:Class". Modules are imported by the workers only."""

TARGETS: dict[str, str] = {
    "artifacts": "tests.fuzz.artifacts:Artifacts",
    "checkpoints": "tests.fuzz.checkpoints:Checkpoints",
    "decoders": "tests.fuzz.decoders:Decoders",
    "gguf": "tests.fuzz.gguf_headers:GgufHeaders",
    "gguf-models": "tests.fuzz.gguf_models:GgufModels",
    "graphs": "tests.fuzz.graphs:Graphs",
    "http": "tests.fuzz.http_bodies:HttpBodies",
    "listings": "tests.fuzz.listings:Listings",
    "near-misses": "tests.fuzz.near_misses:NearMisses",
    "pt2": "tests.fuzz.exported_archives:ExportedArchives",
    "ranks": "tests.fuzz.rank_messages:RankMessages",
    "references": "tests.fuzz.references:References",
    "schedules": "tests.fuzz.schedules:Schedules",
    "slots": "tests.fuzz.slot_messages:SlotMessages",
    "weights": "tests.fuzz.artifacts:ShardBytes",
}
