// In place of bind_mutants.cpp in the module that is installed.
namespace pybind11 {
class module_;
}

void bind_mutants(pybind11::module_& /*module*/);
void bind_mutants(pybind11::module_& /*module*/) {}
