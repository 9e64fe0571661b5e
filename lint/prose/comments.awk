# Comments of YAML files, and the summaries, descriptions and messages in them, as Markdown in `folder`: each on its own line, so that an
# alarm names that line. A value that a template fills in is `x`.
FNR == 1 {
    close(out)
    out = FILENAME
    gsub("/", "+", out)
    out = folder out ".md"
}

{
    line = ""
    if (match($0, /(^| )# ?/)) {
        line = substr($0, RSTART + RLENGTH)
    } else if (match($0, /^ *(- )?(summary|description|message): */)) {
        line = substr($0, RLENGTH + 1)
        gsub(/^["']|["']$/, "", line)
    }
    gsub(/[{][{][^}]*[}][}]/, "`x`", line)
    print line >out
}
