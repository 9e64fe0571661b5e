# Documentation comments of Rust's sources as Markdown in `folder`sources, and names of their tests as sentences in `folder`tests: each on
# its own line, so that an alarm names that line.
FNR == 1 {
    close(comments)
    close(names)
    file = FILENAME
    gsub("/", "+", file)
    comments = folder "sources/" file ".md"
    names = folder "tests/" file ".md"
}

{ comment = name = "" }

match($0, /^ *\/\/[\/!] ?/) { comment = substr($0, RLENGTH + 1) }

/#[[](tokio::)?test[](]/ { is_test = 1 }

is_test && match($0, /fn [a-z0-9_]+/) {
    is_test = 0
    name = substr($0, RSTART + 3, RLENGTH - 3)
    gsub(/_/, " ", name)
    name = toupper(substr(name, 1, 1)) substr(name, 2) "."
}

{
    print comment >comments
    print name >names
}
