import pytest
from pydantic import BaseModel, ValidationError

from warp_unlearning.config import Config
from warp_unlearning.training.recipe import Recipe


def sections() -> list[type[BaseModel]]:
    kinds = [field.annotation for field in Config.model_fields.values()]
    return [Config, *(k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))]


@pytest.mark.parametrize("section", sections(), ids=lambda s: s.__name__)
def test_every_section_refuses_what_it_does_not_know(section: type[BaseModel]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        section.model_validate({"nonsense": 1})


@pytest.mark.parametrize("section", sections(), ids=lambda s: s.__name__)
def test_a_configuration_does_not_change_once_made(section: type[BaseModel]) -> None:
    made = section()
    with pytest.raises(ValidationError, match="frozen"):
        setattr(made, next(iter(section.model_fields)), 1)


def test_there_are_the_sections_promised() -> None:
    assert len(sections()) == 7


def test_the_training_section_is_a_recipe() -> None:
    assert Recipe(**Config().training.model_dump(exclude={"recipe"})) == Recipe()
