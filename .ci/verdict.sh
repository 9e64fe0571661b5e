#!/usr/bin/env bash
# Verdicts of tests in a shell, for scripts that source it: each is printed and counted. What a command printed may be in the file `log`.
passed=0 failed=0
log=${log:-/dev/null}
# `verdict CODE NAME`: what the test is called passed if the code is 0.
verdict() {
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
        echo "passed  $2"
    else
        failed=$((failed + 1))
        echo "FAILED  $2"
        sed 's/^/        /' "$log"
    fi
}
# Ends the script, with 1 if some test failed.
judge() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ] || exit 1
}
