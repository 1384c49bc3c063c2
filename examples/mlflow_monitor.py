"""A monitor of your own: MLflow. A run calls those of its methods that the object has; what it raises never stops the run.

    cohort train my_recipe.toml 'monitors.also=["mlflow_monitor:MlflowMonitor"]'        # with this file beside you
    cohort.train(..., monitors=[MlflowMonitor("my experiment")])                        # or an object, from Python

Needs `pip install mlflow`; where it writes to is MLflow's own setting, MLFLOW_TRACKING_URI.
"""

from __future__ import annotations

import re


class MlflowMonitor:
    """Metrics by step, the recipe as parameters, evaluations, and the completions of shown groups as a table."""

    @classmethod
    def missing(cls) -> str:
        """Asked before a run starts, and by `cohort doctor`."""
        try:
            import mlflow  # noqa: F401
        except ImportError:
            return "mlflow is not installed. Install it with `pip install mlflow`"
        return ""

    @classmethod
    def for_run(cls, run) -> MlflowMonitor:
        """How a recipe makes one: `run` has the recipe, the folder, and the step that a resumed run goes on from."""
        return cls("cohort", run.folder.resolve().name, run.recipe.model_dump())

    def __init__(self, experiment: str = "cohort", name: str | None = None, recipe: dict | None = None) -> None:
        import mlflow

        self.mlflow = mlflow
        mlflow.set_experiment(experiment)
        self.run = mlflow.start_run(run_name=name)
        for section, words in (recipe or {}).items():
            values = words if isinstance(words, dict) else {"": words}
            mlflow.log_params({f"{section}.{word}".rstrip("."): str(value)[:500] for word, value in values.items()})

    def on_metrics(self, row) -> None:
        self.log(row, row["step"])

    def on_evaluation(self, evaluation) -> None:
        for name, numbers in evaluation["sets"].items():
            values = {what: number.get("value") if isinstance(number, dict) else number for what, number in numbers.items()}
            self.log({f"eval/{name}/{what}": value for what, value in values.items()}, evaluation["step"])

    def on_rollouts(self, step, rollouts) -> None:
        columns = ("prompt", "completion", "reward", "success")
        self.mlflow.log_table({name: [row[name] for row in rollouts] for name in columns}, f"completions/step-{step}.json")

    def on_finish(self, summary) -> None:
        self.mlflow.set_tag("status", summary["status"])

    def close(self) -> None:
        self.mlflow.end_run()

    def log(self, values, step: int) -> None:
        """MLflow takes numbers, and in a name letters, digits and a few signs: pass@1 becomes pass_at_1."""
        numbers = {name: value for name, value in values.items() if name != "step" and isinstance(value, int | float)}
        self.mlflow.log_metrics(
            {re.sub(r"[^\w\-./ ]", "_", name.replace("@", "_at_")): v for name, v in numbers.items()}, step=step
        )
