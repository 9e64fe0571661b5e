# Documentation comments of Rust's sources, and names of tests as sentences, as Markdown in `folder`: each on its own line, so that an
# alarm names that line.
FNR == 1 {
    close(out)
    out = FILENAME
    gsub("/", "+", out)
    out = folder out ".md"
}

{ line = "" }

match($0, /^ *\/\/[\/!] ?/) { line = substr($0, RLENGTH + 1) }

/#[[](tokio::)?test[](]/ { is_test = 1 }

is_test && match($0, /fn [a-z0-9_]+/) {
    is_test = 0
    line = substr($0, RSTART + 3, RLENGTH - 3)
    gsub(/_/, " ", line)
    line = toupper(substr(line, 1, 1)) substr(line, 2) "."
}

{ print line >out }
