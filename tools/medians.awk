# Benchmarks that ran several times, as a table: of messages a second and of the shares of
# the yardsticks the median, and the lowest and highest. Reads what go test -bench prints.

function median(list,    n, v, i, j, x) {
	n = split(list, v, " ")
	for (i = 2; i <= n; i++) {
		x = v[i] + 0
		for (j = i - 1; j > 0 && v[j] + 0 > x; j--) v[j + 1] = v[j]
		v[j + 1] = x
	}
	low = v[1]; high = v[n]
	return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
}

{ print }

/^Benchmark/ {
	sub(/-[0-9]+$/, "", $1)
	for (i = 3; i < NF; i += 2) {
		if ($(i + 1) == "msg/s") rates[$1] = rates[$1] " " $i
		if ($(i + 1) == "of-raw") shares[$1] = shares[$1] " " $i
		if ($(i + 1) == "of-bare") bares[$1] = bares[$1] " " $i
	}
	if (!($1 in seen)) { seen[$1] = 1; names[++count] = $1 }
}

/^(FAIL|panic:)/ { failed = 1 }

END {
	print ""
	print "| benchmark | messages a second | of raw | of bare calls |"
	print "|---|---|---|---|"
	for (i = 1; i <= count; i++) {
		n = names[i]
		m = median(rates[n])
		printf "| %s | %.0f (%.0f to %.0f) | ", n, m, low, high
		m = median(shares[n])
		printf "%.2f (%.2f to %.2f) |", m, low, high
		if (bares[n] == "") { print " |"; continue }
		m = median(bares[n])
		printf " %.2f (%.2f to %.2f) |\n", m, low, high
	}
	exit failed
}
