"""An exported folder on its way to the Hugging Face hub."""

from pathlib import Path
from typing import Any

from pvml.errors import HubUnavailable, PvmlError
from pvml.hub import endpoint, require_hub


def require_repo(repo: str) -> None:
    """Nothing, if a folder could be pushed to a repository of that name; the hub is not asked.

    Raises: PvmlError for a name that the hub does not take, or if its library is missing.
    """
    try:
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
    except ImportError as error:
        raise PvmlError(
            "--push uploads with huggingface_hub, which is missing: pip install 'pvml[hub]'"
        ) from error
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise PvmlError(f"--push {repo!r} names no repository on the hub: {error}") from error


def push_folder(folder: Path, repo: str, *, private: bool = False) -> str:
    """Upload a folder to a model repository on the hub, made if it is not there; its address.

    private: make it visible to its owner only; one that is there stays as it is.

    Raises: HubUnavailable if the hub does not answer; PvmlError if it refuses. The folder stays.
    """
    stays = f"{folder} is complete and stays: `hf upload {repo} {folder}` uploads it later."
    require_hub(f"The upload to {repo}", instead=stays)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        api: Any = HfApi(endpoint=endpoint())
        api.create_repo(repo, repo_type="model", private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo,
            repo_type="model",
            folder_path=str(folder),
            commit_message="Exported with pvml",
        )
    except HfHubHTTPError as error:
        raise PvmlError(
            f"the hub refused the upload to {repo} ({_first_line(error)}): `hf auth login` says "
            f"who you are, and the name must be yours. {stays}"
        ) from error
    except Exception as error:  # its HTTP client's, or the disk's
        raise HubUnavailable(
            f"the upload to {repo} broke off "
            f"({type(error).__name__}: {_first_line(error)}). {stays}"
        ) from error
    return f"{endpoint()}/{repo}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
