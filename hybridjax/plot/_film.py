"""Only where a film is made: matplotlib is imported at once."""

from pathlib import Path
from typing import Any

from matplotlib.animation import FuncAnimation, writers


class Film(FuncAnimation):
    """An animation of matplotlib that notebooks show, and that chooses what to save
    itself with."""

    def _repr_html_(self) -> str:
        return self.to_jshtml()

    def save(self, filename: Any, writer: Any = None, **options: Any):
        """Into a GIF, or, with ffmpeg, whatever that knows, such as MP4. As the method
        of `matplotlib.animation.FuncAnimation`.

        **Raises:**

        - `ValueError` if it takes ffmpeg, and there is none.
        """
        gif = Path(filename).suffix == ".gif"
        if writer is None and not gif and not writers.is_available("ffmpeg"):
            raise ValueError(
                f"To save {filename}, ffmpeg is needed, which is not installed. A GIF "
                "can be saved without."
            )
        writer = writer or ("pillow" if gif else "ffmpeg")
        super().save(filename, writer, **options)
