// C++ streams and files below a directory: what they do, printed.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

int main(int, char **arguments) {
    namespace fs = std::filesystem;
    const fs::path dir = arguments[1];
    fs::create_directories(dir / "one/two");
    {
        std::ofstream out(dir / "one/text");
        for (int at = 0; at < 20000; at++)
            out << "line " << at << '\n';
        std::cout << "tellp " << out.tellp() << '\n';
    }
    {
        std::ofstream more(dir / "one/text", std::ios::app);
        std::cout << "at the end " << more.tellp() << '\n';
        more << "more\n";
        std::cout << "behind it " << more.tellp() << '\n';
    }
    std::fstream both(dir / "one/text", std::ios::in | std::ios::out);
    both.seekp(5);
    both << "ZERO";
    both.seekg(0);
    std::string line;
    std::getline(both, line);
    std::cout << line << '\n';
    both.close();
    std::ifstream in(dir / "one/text", std::ios::binary);
    std::string all{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    std::cout << all.size() << " bytes\n";
    in.clear();
    in.seekg(-10, std::ios::end);
    std::getline(in, line);
    std::cout << line << '\n';
    std::ifstream none(dir / "none");
    std::cout << none.is_open() << '\n';
    fs::copy_file(dir / "one/text", dir / "one/two/copy");
    std::cout << fs::file_size(dir / "one/two/copy") << '\n';
    fs::rename(dir / "one/two/copy", dir / "one/moved");
    std::cout << fs::exists(dir / "one/two/copy") << fs::exists(dir / "one/moved") << '\n';
    int entries = 0;
    for (auto &entry : fs::recursive_directory_iterator(dir))
        entries += !entry.path().empty();
    std::cout << entries << " entries\n";
    std::cout << fs::remove_all(dir / "one") << " removed\n";
}
