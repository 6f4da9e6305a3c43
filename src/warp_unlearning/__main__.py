"""`python -m warp_unlearning` is `warp`."""

from .cli.main import main

main()
