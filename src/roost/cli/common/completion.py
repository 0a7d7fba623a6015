"""roost completion: the script that lets a shell complete commands, options and names."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for your SHELL.

    Examples:
      eval "$(roost completion bash)"                          for this shell
      roost completion bash >> ~/.bashrc                       for all that follow
      roost completion zsh > "${fpath[1]}/_roost"
      roost completion fish > ~/.config/fish/completions/roost.fish

    Next: type `roost ` and press Tab.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "roost", "_ROOST_COMPLETE").source())
