"""TensorBoard: event files in output_dir/tensorboard."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from common.words import shell_word
from trackers.start import Fields, Start, number_fields, text_fields


class EventFiles:
    """One event file for each start of a run. It holds all of the run, so those of earlier starts are deleted."""

    closing = ""
    recorded = -1

    def __init__(self, start: Start):
        self._event, self._summary, self._tensor, self._shape = (
            _part(f"compat.proto.{name}_pb2") for name in ("event", "summary", "tensor", "tensor_shape"))
        is_text = _part("plugins.text.plugin_data_pb2").TextPluginData(version=0)
        self._text = self._summary.SummaryMetadata(plugin_data=self._summary.SummaryMetadata.PluginData(
            plugin_name="text", content=is_text.SerializeToString()))
        self.opening = f"to look: tensorboard --logdir {shell_word(start.shown)}"
        self._earlier = list(Path(start.folder).glob("events.out.tfevents.*"))
        self._writer = _part("summary.writer.event_file_writer").EventFileWriter(start.folder)
        # A TensorBoard that has read the earlier files forgets them here.
        began = self._event.SessionLog(status=self._event.SessionLog.START)
        self._writer.add_event(self._event.Event(step=0, session_log=began))
        rows = "\n".join(f"| {name} | {json.dumps(value)} |" for name, value in start.config.items())
        self._add(0, None, [self._text_value("config", f"| | |\n| --- | --- |\n{rows}")])

    def caught_up(self) -> None:
        self._writer.flush()
        for path in self._earlier:
            path.unlink(missing_ok=True)

    def log(self, step: int, fields: Fields) -> None:
        values = [self._summary.Summary.Value(tag=name, simple_value=value)
                  for name, value in number_fields(fields).items()]
        values += [self._text_value(name, text) for name, text in text_fields(fields).items()]
        self._add(step, fields.get("time"), values)

    def close(self, is_done: bool) -> None:
        self._writer.close()

    def _text_value(self, name: str, text: str) -> Any:
        """A text, which TensorBoard shows as Markdown."""
        tensor = self._tensor.TensorProto(dtype="DT_STRING", string_val=[text.encode()],
                                          tensor_shape=self._shape.TensorShapeProto(
                                              dim=[self._shape.TensorShapeProto.Dim(size=1)]))
        return self._summary.Summary.Value(tag=f"{name}/text_summary", metadata=self._text, tensor=tensor)

    def _add(self, step: int, seconds: float | None, values: list) -> None:
        if values:
            event = self._event.Event(step=step, summary=self._summary.Summary(value=values))
            if seconds is not None:
                event.wall_time = seconds
            self._writer.add_event(event)
            self._writer.flush()


def _part(name: str) -> Any:
    """A module of tensorboard, whose messages are made when it is imported."""
    return importlib.import_module(f"tensorboard.{name}")
