# Comments of YAML files, and the summaries, descriptions, messages and caveats in them, and the notes of the chart, as Markdown in
# `folder`: each on its own line, so that an alarm names that line. A value that a template fills in is `x`.
FNR == 1 {
    close(out)
    out = FILENAME
    gsub("/", "+", out)
    out = folder out ".md"
    block = -1
}

{
    line = ""
    match($0, /^ */)
    indent = RLENGTH
    if (FILENAME ~ /NOTES\.txt$/) {
        line = $0
    } else if (block >= 0 && ($0 == "" || indent > block)) {
        line = substr($0, indent + 1)
    } else {
        block = -1
        if (match($0, /^ *(- )?(summary|description|shortDescription|message|caveats): */)) {
            line = substr($0, RLENGTH + 1)
            if (line ~ /^[|>][-+]?$/) {
                block = indent
                line = ""
            }
            gsub(/^["']|["']$/, "", line)
        } else if (match($0, /(^| )# ?/)) {
            line = substr($0, RSTART + RLENGTH)
        }
    }
    gsub(/[{][{][^}]*[}][}]/, "`x`", line)
    sub(/^(`x`)+$/, "", line)
    print line >out
}
