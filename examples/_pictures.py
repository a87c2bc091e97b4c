"""How the examples save what they draw."""


def save(figure, path):
    figure.savefig(path, dpi=130)
    print(f"The picture is in {path}.")
