"""Options: the program to test, and how long the history is."""


def pytest_addoption(parser):
    parser.addoption("--service", default="bin/select-service", help="the program to start")
    parser.addoption("--vllm", help="a Python that has vLLM for the CPU")
    parser.addoption("--requests", type=int, default=90, help="requests that are compared")
    parser.addoption("--seed", type=int, default=1, help="another history")
