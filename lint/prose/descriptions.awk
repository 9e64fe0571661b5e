# The descriptions of a CRD as Markdown: each on the line on which it begins in the manifest, so that an alarm names that line.
# Those that Kubernetes wrote (the resources of a container, the fields of a condition) are left out.
function foreign(  level) {
    for (level = 1; level < depth; level++)
        if (key[level] == "resources:" || (key[level] == "conditions:" && key[level + 2] == "properties:"))
            return 1
    return 0
}

{ match($0, /^ */) }

# Lines of a block. Only an empty one has no indentation of its own.
block && ($0 == "" || RLENGTH > indent[depth]) {
    line = $0
    sub(/^ */, "", line)
    print shown ? line : ""
    next
}

{
    block = 0
    while (depth > 0 && indent[depth] >= RLENGTH) depth--
    depth++
    indent[depth] = RLENGTH
    key[depth] = $1
}

$1 == "description:" || ($1 == "-" && $2 == "description:") {
    shown = !foreign()
    line = $0
    sub(/^ *(- )?description: */, "", line)
    if (line ~ /^[|>][-+]?$/) {
        block = 1
        line = ""
    } else if (line ~ /^".*"$/) {
        line = substr(line, 2, length(line) - 2)
        gsub(/\\"/, "\"", line)
    } else if (line ~ /^'.*'$/) {
        line = substr(line, 2, length(line) - 2)
        gsub(/''/, "'", line)
    }
    print shown ? line : ""
    next
}

{ print "" }
