"""The server: two imports and one line are Muster's, the rest is as it was with `FedAvg`."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from muster.flower import MusterStrategy
from muster.selection.terraform import Terraform
from own_flower_app.client_app import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds, lr = int(context.run_config["rounds"]), float(context.run_config["lr"])
    strategy = MusterStrategy(selector=Terraform(clients_per_round=10))  # was: FedAvg(fraction_train=0.5)
    end = strategy.start(
        grid, ArrayRecord(Net().state_dict()), num_rounds=rounds, train_config=ConfigRecord({"lr": lr})
    )
    for row in end.result.metrics:
        print(
            f"round {row['round']}: accuracy {row['accuracy']:.3f}, {row['client_trainings']} trainings",
            flush=True,
        )
    if out := str(context.run_config["out"]):
        end.result.save(out)
