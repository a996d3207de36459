"""The training loop: read, step, update, measure, save. Everything it uses is handed in or built from its config."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monograph.config.configurable import Configurable
from monograph.config.json_form import to_json
from monograph.errors import MonographError
from monograph.log import find_missing, get_log
from monograph.models.flops import FlopsPerToken
from monograph.parallel.groups import Groups
from monograph.train.build_optimizer import build_optimizer
from monograph.train.checkpoint.config import AUTO, LATEST
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.data.cursor import Cursor
from monograph.train.data.loader import DataLoader
from monograph.train.data.update_reader import UpdateReader
from monograph.train.folder import RunFolder, RunStart
from monograph.train.garbage import controlled_gc
from monograph.train.goodput import CHECKPOINT, DATA, VALIDATION, GoodputClock, GoodputFile, summarize_finished
from monograph.train.load_monitor import LoadMonitor
from monograph.train.loss_monitor import LossMonitor
from monograph.train.lr_plan import plan_lr, read_plan
from monograph.train.measure import StepMeasurement, StepMeter
from monograph.train.progress import ProgressView
from monograph.train.ready import start_training
from monograph.train.replicas.agreement import digest_settings
from monograph.train.replicas.peer_state import PeerState, copy_tensors, find_local
from monograph.train.replicas.replicas import Replicas
from monograph.train.replicas.torchft_replicas import joined_replicas
from monograph.train.saved_settings import check_model, find_setting_changes
from monograph.train.signals import StoppedOnRequest, StopRequest, watch_for_stop
from monograph.train.source_loss import SourceLosses
from monograph.train.speed import Speed
from monograph.train.startup import Startup
from monograph.train.state import (
    Position,
    check_global_batch,
    check_resumable,
    collect_tensors,
    collect_values,
    find_global_batch,
    restore_position,
    restore_rng,
    seed_rng,
)
from monograph.train.step import Step
from monograph.train.step_checks import StepChecks
from monograph.train.summary import Summary
from monograph.train.update import add_gradients, apply_update
from monograph.train.validate import Validation

log = get_log("trainer")


class TrainingFailed(MonographError):
    """The numbers went bad; the parameters are as they were before the step that did it."""


class Trainer(Configurable):
    """Runs updates from wherever its checkpoint left off to the last step."""

    Config = TrainerConfig

    def __init__(
        self,
        config: TrainerConfig,
        *,
        step: Step,
        data: DataLoader,
        validation_sets: Mapping[str, DataLoader],
        folder: RunFolder,
        startup: Startup,
        flops: FlopsPerToken,
        peak_flops: float,
        groups: Groups,
    ) -> None:
        self.config = config
        self.step = step
        self.data = data
        self.folder = folder
        self.startup = startup
        training = config.training
        self.optimizer = build_optimizer(config.plan_optimizer(), step)
        if step.backend is not None and "optimizer" in config.compile.components:
            self.optimizer.compile(step.backend)
        self.lr_plan = plan_lr(config.lr_scheduler, peak=config.optimizer.lr, steps=training.steps).plan
        self.is_rank_zero = groups.rank == 0
        self.groups = groups
        self.checkpoints = config.checkpoint.build(
            folder=folder.path / config.checkpoint.folder, process_group=groups.checkpoint_group(), opens=False
        )
        self.metrics = config.metrics.build(folder=folder.path, run=to_json(config), is_writer=self.is_rank_zero)
        self.profiler = config.profiler.build(folder=folder.path / "traces", rank=groups.rank)
        self.validator = None
        if validation_sets:
            self.validator = config.validator.build(
                step=step, sets=validation_sets, local_batch_size=training.local_batch_size
            )
        interval = config.dataloader.source_loss_interval
        self.source_losses = SourceLosses(data.mixture, interval=interval, step=step, groups=groups)
        self.global_batch = find_global_batch(training, step.data_part[1])
        self.meter = StepMeter(
            device=step.device, flops=flops, peak_flops=peak_flops, world_size=groups.mesh.world_size
        )
        self.load_monitor = LoadMonitor(
            config.model.find_moe() if self.is_rank_zero else None,
            limit=config.metrics.expert_load_limit,
            patience=config.metrics.expert_load_patience,
        )
        self.loss_monitor = LossMonitor()
        self.goodput, self.goodput_file = GoodputClock(startup), GoodputFile(folder.path)
        self.checks = StepChecks(config, step=step, groups=groups, goodput=self.goodput)
        self.position = Position()
        self.replicas = Replicas()
        self._saved_step = self._healed_step = 0
        self.validation: Validation | None = None
        self.speed = Speed(window=config.metrics.log_interval)
        self._missing: list[str] = []
        self.start = RunStart()

    def load(self) -> None:
        """Continue from the checkpoint the config asks for, if it asks for one."""
        seed_rng(self.config.debug.seed)
        tensors = collect_tensors(self.step, self.optimizer)
        loaded = self.checkpoints.resume(tensors, check=self._compare_settings)
        if loaded is None:
            return
        self.start = RunStart(loaded=loaded.path)
        if loaded.model_only:
            return
        is_own = self.checkpoints.holds(loaded.path)
        changes = find_setting_changes(loaded.values, self.config)
        self.start = RunStart(step=loaded.step, loaded=loaded.path, is_continued=is_own, changes=changes)
        check_global_batch(loaded.values, self.config.training, now=self.global_batch)
        self.position = restore_position(loaded.values, self.data)
        self.optimizer.set_updates(self.position.step)
        restore_rng(tensors, self.step.device)
        self._saved_step = self.position.step if is_own else 0

    def _compare_settings(self, values: Mapping[str, Any], path: Path, *, model_only: bool) -> None:
        """Refuse a checkpoint of another model or schedule before it is read; say which other settings changed."""
        check_model(values, self.config, path)
        if model_only:
            return
        check_resumable(values)
        for change in find_setting_changes(values, self.config):
            log.info("saved run -> this run: %s", change)
        done, saved = values["step"], values.get("lr_plan")
        peak, steps = self.config.optimizer.lr, self.config.training.steps
        planned = plan_lr(self.config.lr_scheduler, peak=peak, steps=steps, done=done, saved=saved)
        self.lr_plan = planned.plan
        if planned.note:
            log.info("%s", planned.note)

    def train(self) -> Summary:
        """Make the remaining updates; whatever happens, files are closed and started saves are finished."""
        steps, done = self.config.training.steps, self.position.step
        self.goodput.start()
        style = self.config.metrics.progress if self.is_rank_zero else "off"
        view = ProgressView(style, steps=steps, done=done, interval=self.config.metrics.log_interval)
        try:
            with watch_for_stop() as stop, self.checkpoints, self._replicas(), self._reader() as reader:
                self.replicas.join()
                if not self.is_finished():
                    reader.wait(self.position.cursor, *self._data_part)
                self._claim_folder()
                start_training(self.groups, self.step, self.startup)
                with controlled_gc(self.config.training.gc_interval) as collect:
                    self.meter.start()
                    while not (self.is_finished() and self.replicas.settle()):
                        if not self.is_finished():
                            self._one_step(self.position.step + 1, reader, view)
                            collect(self.position.step)
                            self._leave_if_asked(stop, view)
                        self.replicas.join()
                self._publish(self.meter.flush(), view)
                if self._healed_step == steps != self._saved_step and self.checkpoints.is_due(steps, last=True):
                    self._save()
                self._wait_for_save()
            self._close(view)
            return self._summary()
        finally:
            self._close(view)
            for text in self._missing:
                log.warning("%s", text)

    def is_finished(self) -> bool:
        """Whether the last step lies behind."""
        return self.position.step >= self.config.training.steps

    def collect_state(self) -> PeerState:
        """Everything that another replica needs to continue from here; tensors are the live ones."""
        values = collect_values(self.position, self.data, self.config, self.lr_plan, global_batch=self.global_batch)
        return PeerState(find_local(collect_tensors(self.step, self.optimizer)), values)

    def restore_state(self, state: PeerState) -> None:
        """Continue where another replica is."""
        tensors = collect_tensors(self.step, self.optimizer)
        plan = read_plan(state.values["lr_plan"], self.config.lr_scheduler, peak=self.config.optimizer.lr)
        position = restore_position(state.values, self.data)  # everything is read before anything is written
        copy_tensors(find_local(tensors), state.tensors)
        restore_rng(tensors, self.step.device)
        self.lr_plan, self.position = plan, position
        self.optimizer.set_updates(self.position.step)
        self._healed_step = self.position.step

    @contextmanager
    def _replicas(self) -> Iterator[None]:
        settings = digest_settings(self.config, self.groups.mesh, self.data.fingerprint())
        with joined_replicas(self.config.fault_tolerance, self.groups, self, settings) as self.replicas:
            yield

    def _reader(self) -> UpdateReader:
        local = self.config.training.local_batch_size
        return UpdateReader(self.data, local_batch_size=local, global_batch_size=self.global_batch)

    @property
    def _data_part(self) -> tuple[int, int]:
        """Which part of the next global batch this rank reads, and into how many it is divided."""
        part, parts = self.step.data_part
        return self.replicas.part * parts + part, self.replicas.parts * parts

    def _claim_folder(self) -> None:
        """Everything is ready and the first step is next: from here on the run writes files."""
        self.folder.claim(self.groups, self.start)
        self.checkpoints.open(is_new=not self.start.is_continued)
        goes_back = self.start.is_continued and self.config.checkpoint.load not in (LATEST, AUTO)
        if self.start.is_continued and self.config.checkpoint.enabled:
            self.checkpoints.set_later_aside(self.start.step)
        if self.is_rank_zero:
            self.goodput_file.start(self.goodput, step=self.position.step, ranks=self.groups.mesh.world_size)
        self.metrics.start(self.start.step, goes_back=goes_back)

    def _close(self, view: ProgressView) -> None:
        """Close every file, and note what could not be written. Safe to call twice."""
        view.close()
        self.profiler.close()
        self.metrics.close()
        self.goodput_file.finish(self.goodput)
        parts = (self.folder, self.metrics, self.profiler, self.checkpoints)
        self._missing = [text for part in parts for text in part.find_missing()] + find_missing()

    def _one_step(self, number: int, reader: UpdateReader, view: ProgressView) -> None:
        if self.profiler.before_step(number):
            self.meter.start()
        if "first step" not in self.startup.seconds:
            with self.startup.phase("first step"):
                measured = self._update(number, reader)
                if measured is not None:
                    measured.loss.item()
            for line in self.startup.lines():
                log.info(line)
        else:
            measured = self._update(number, reader)
        if measured is None:
            return
        self._publish(self.meter.add(measured), view)
        if self.profiler.after_step(number):
            self.meter.start()
        last = self.config.training.steps
        if self.validator is not None and self.validator.is_due(number, last):
            self._publish(self.meter.flush(), view)
            with self.goodput.phase(VALIDATION):
                self.validation = self.validator.run()
            self.metrics.write({"step": number, **self.validation.to_record()})
            log.info("step %d: %s", number, self.validation.describe())
            self.meter.start()
        if self.checkpoints.is_due(number, last=number == last):
            self._publish(self.meter.flush(), view)
            self._save()
            self.meter.start()

    def _update(self, number: int, reader: UpdateReader) -> StepMeasurement | None:
        """One optimizer update, with the checks that are due; None when the replicas did not make it."""
        return self.checks.run(number, lambda: self._read(reader), lambda chosen: self._apply(number, chosen))

    def _read(self, reader: UpdateReader) -> list[Batch]:
        """The micro-batches of this rank for one update."""
        with self.goodput.phase(DATA):
            return reader.read(self.position.cursor, *self._data_part)

    def _apply(self, number: int, chosen: Sequence[Batch]) -> StepMeasurement | None:
        """Every micro-batch's gradients, the norm, the weights, the biases."""
        training = self.config.training
        loss = add_gradients(self.step, chosen, self.replicas)
        if not self.replicas.commit():
            self.step.discard()
            return None
        by_source = self.source_losses.measure(chosen) if self.source_losses.is_due(number) else {}
        self.meter.mark_update()
        lr = self.lr_plan.lr(number)
        updated = apply_update(self.step, self.optimizer, loss=loss, lr=lr, max_norm=training.max_norm)
        tokens = self.global_batch * training.seq_len
        self.position.step = number
        self.position.tokens += tokens
        self.position.cursor = self.position.cursor.advance(self.global_batch, self.data.samples_per_epoch)
        known: dict[str, Any] = {"lr": lr, "tokens": self.position.tokens, "cursor": self.position.cursor.to_json()}
        if by_source:
            known["source_loss"] = by_source
        if self.data.mixture is not None:
            known["source_samples"] = self.data.mixture.count_seen(self.position.cursor.sample)
        if self.step.compiled_graphs is not None:
            known["compiled_graphs"] = self.step.compiled_graphs
        known |= {"time": round(time.time(), 3), "goodput": self.goodput.read(), **self.checkpoints.writers.describe()}
        if self.config.fault_tolerance.replicas:
            known["replicas"] = self.replicas.parts
        return StepMeasurement(
            step=number,
            loss=loss,
            grad_norm=updated.grad_norm,
            tokens=tokens,
            replicas=self.replicas.parts,
            metrics=updated.metrics,
            known=known,
        )

    def _publish(self, records: list[dict[str, Any]], view: ProgressView) -> None:
        if records:
            self.folder.check()
        for record in records:
            record |= self.speed.add(record)
            self.metrics.write(record)
            view.step(record)
            self.load_monitor.add(record)
            self.loss_monitor.add(record)
            if not (math.isfinite(record["loss"]) and math.isfinite(record["grad_norm"])):
                index = Cursor.from_json(record["cursor"])
                raise TrainingFailed(
                    f"step {record['step']}: loss {record['loss']}, gradient norm {record['grad_norm']}",
                    why="a non-finite gradient would corrupt every weight; this update was not applied",
                    do=f"{self._describe_way_back()} with a lower optimizer.lr, or look at the data: the "
                    f"{self.global_batch} samples before epoch {index.epoch}, sample {index.sample}",
                )

    def _describe_way_back(self) -> str:
        return "resume from the last checkpoint" if self._checkpoint is not None else "start again"

    def _save(self) -> None:
        self._saved_step = self.position.step
        values = collect_values(self.position, self.data, self.config, self.lr_plan, global_batch=self.global_batch)
        with self.goodput.phase(CHECKPOINT):
            self.checkpoints.save(self.position.step, collect_tensors(self.step, self.optimizer), values)

    def _wait_for_save(self) -> None:
        with self.goodput.phase(CHECKPOINT):
            self.checkpoints.wait()

    def _leave_if_asked(self, stop: StopRequest, view: ProgressView) -> None:
        """End between two steps. What is saved has been looked at: a step that went bad ends the run as such."""
        if self.position.step == self.config.training.steps or not self.groups.any_rank(bool(stop)):
            return
        self._publish(self.meter.flush(), view)
        where = "without a checkpoint (checkpoint.enabled is false)"
        if self.config.checkpoint.enabled:
            if self._saved_step != self.position.step:
                self._save()
            self._wait_for_save()
            where = "with a checkpoint"
        raise StoppedOnRequest(
            f"{stop.signal_name or 'another rank'}: stopped after step {self.position.step}, {where}",
            do="continue with --checkpoint.load latest" if self.config.checkpoint.enabled else "",
        )

    @property
    def _checkpoint(self) -> Path | None:
        """The newest checkpoint of this run, which `latest` would find: saved by it, or what it continued from."""
        return self.checkpoints.last_saved or (self.start.loaded if self.start.is_continued else None)

    def _summary(self) -> Summary:
        return Summary(
            steps=self.position.step,
            first=self.speed.first,
            last=self.speed.last,
            speed=self.speed.report(
                self.global_batch * self.config.training.seq_len, seconds=self.goodput.seconds_since_start()
            ),
            validation=self.validation,
            checkpoint=self._checkpoint,
            metrics=self.metrics.path,
            divergence=self.loss_monitor.conclude(),
            missing=[
                text if rank == 0 else f"rank {rank}: {text}"
                for rank, texts in enumerate(self.groups.all_gather_object(self._missing))
                for text in texts
            ],
            is_rank_zero=self.is_rank_zero,
            seconds=self.goodput.read(),
            goodput=summarize_finished(self.folder.path) if self.is_rank_zero else None,
        )
