# The square of a number, in a file. Some rows need a licence first.
if [ -n "$2" ] && [ ! -e "$2" ]; then
    echo "row $1: there is no licence at $2" >&2
    exit 1
fi
echo "$1 squared is $(($1 * $1))" > square.txt
