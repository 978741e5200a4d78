# Reads the output of go test -v, followed by a line "=== EXIT code", and prints a
# line per package, what failed tests said, and at the end every skipped test with
# its reason: go test alone says nothing of those. The summary goes to the file
# keep too, if that is set. Ends with the code.

function forget() {
	split("", said); split("", failed); split("", reason)
	loose = whole = ""; fails = 0; now = ""
}

BEGIN { forget(); code = 1 }

/^=== EXIT / { code = $3; next }

/^=== (RUN|CONT|NAME|PAUSE)/ { now = $3; next }

/^ *--- (PASS|FAIL|SKIP): / {
	name = $3
	if ($2 == "SKIP:") {
		skips[++n] = name
		why[n] = reason[name] == "" ? "it gives no reason" : reason[name]
	} else if ($2 == "FAIL:") {
		failed[++fails] = name
		said[name] = said[name] $0 "\n"
	}
	whole = whole $0 "\n"
	next
}

/^(ok  |FAIL|\?   )\t/ {
	if ($1 == "FAIL") {
		for (i = 1; i <= fails; i++) printf "%s", said[failed[i]]
		# Without a failed test it is a panic, a leak or a build that failed.
		printf "%s", fails ? loose : whole
	}
	for (i = told + 1; i <= n; i++) skips[i] = skips[i] " of " $2
	told = n
	print
	fflush()
	forget()
	next
}

/^(PASS|FAIL)$/ { next }

{
	whole = whole $0 "\n"
	if (now == "") {
		loose = loose $0 "\n"
		next
	}
	said[now] = said[now] $0 "\n"
	if (match($0, /^ +[A-Za-z0-9_]+\.go:[0-9]+: /)) reason[now] = substr($0, RLENGTH + 1)
}

END {
	printf "%s", whole # of a build that failed before any package's line
	summary = n == 0 ? "No test was skipped.\n" : sprintf("SKIPPED %d test%s:\n", n, n == 1 ? "" : "s")
	for (i = 1; i <= n; i++) summary = summary "  " skips[i] ": " why[i] "\n"
	printf "%s", summary
	if (keep != "") printf "%s", summary > keep
	exit code
}
