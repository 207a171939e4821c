// The core and the sampler without Python, in one program that is compiled once per sanitizer: `driver core ..` is
// core_driver.cpp, `driver sampler ..` is sampler_driver.cpp, whose sources come before this one.
int main(int count, char** arguments) {
    const bool sampler = count > 1 && std::string(arguments[1]) == "sampler";
    return sampler ? sampler_driver::main(count - 2, arguments + 2) : core_driver::main(count - 2, arguments + 2);
}
