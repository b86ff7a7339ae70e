"""`python -m cedagent` is the command `cedagent`."""

from cedagent.cli.main import main

if __name__ == "__main__":
    main()
