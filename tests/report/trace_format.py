"""The Trace Event Format, as far as complete, counter and metadata events go, as a JSON schema.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

NUMBER = {"type": "number"}
NAMES = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index"}
NAMES |= {"thread_sort_index": "sort_index", "process_labels": "labels"}
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ph", "pid", "name"],
                "properties": {"pid": {"type": "integer"}, "tid": {"type": "integer"}, "name": {"type": "string"}},
                "oneOf": [
                    {
                        "properties": {"ph": {"const": "X"}, "dur": NUMBER | {"minimum": 0}, "ts": NUMBER},
                        "required": ["tid", "ts", "dur"],
                    },
                    {
                        "properties": {
                            "ph": {"const": "C"},
                            "ts": NUMBER,
                            "args": {"type": "object", "additionalProperties": NUMBER, "minProperties": 1},
                        },
                        "required": ["ts", "args"],
                    },
                    {
                        "properties": {"ph": {"enum": ["i", "s", "t", "f"]}, "ts": NUMBER},
                        "required": ["tid", "ts"],
                    },
                    {
                        "properties": {"ph": {"const": "M"}, "name": {"enum": list(NAMES)}, "args": {"type": "object"}},
                        "required": ["args"],
                    },
                ],
            },
        },
    },
}


def check_nesting(events):
    """Complete events of one thread lie inside of each other or apart, in the whole nanoseconds that Perfetto counts;
    it drops others."""
    by_thread = {}
    for event in events:
        if event["ph"] == "X":
            start = int(event["ts"] * 1000)
            span = (start, -start - int(event["dur"] * 1000))
            by_thread.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in by_thread.values():
        open_until = []
        for start, end in sorted(spans):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or -end <= open_until[-1]
            open_until.append(-end)
