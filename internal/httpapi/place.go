package httpapi

import (
	"strconv"
	"strings"

	"github.com/strandmq/strandmq/internal/plain"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A place to go on from is, for each partition that is read, the offset of the next
// message, and behind a ~ the topic's incarnation: 0:17,1:4~k3x9. It is what "next"
// says, what the id of an event is, and what "from" takes. Whoever writes one by hand
// may leave the incarnation out, and reads whatever topic has the name.

// places writes one.
func places(list []*strandmqv1.ReadPlace, incarnation uint64) string {
	var b strings.Builder
	for i, p := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(uint64(p.GetPartition()), 10))
		b.WriteByte(':')
		b.WriteString(strconv.FormatUint(p.GetOffset(), 10))
	}
	if incarnation != 0 {
		b.WriteByte('~')
		b.WriteString(strconv.FormatUint(incarnation, 36))
	}
	return b.String()
}

// isPlaces tells one from a position, of which only times have colons.
func isPlaces(text string) bool { return strings.Contains(text, ":") && !strings.HasPrefix(text, "@") }

// parsePlaces reads one.
func parsePlaces(field, text string) (out []*strandmqv1.ReadPlace, incarnation uint64, err error) {
	text, mark, marked := strings.Cut(text, "~")
	if marked {
		if incarnation, err = strconv.ParseUint(mark, 36, 64); err != nil || incarnation == 0 {
			return nil, 0, refuse("BAD_VALUE", field, "%s, behind the ~, is no topic's: send the place as it came, or without the ~ and what is behind it", plain.Quote(plain.Short(mark, 100)))
		}
	}
	for one := range strings.SplitSeq(text, ",") {
		number, offset, _ := strings.Cut(one, ":")
		n, bad := strconv.ParseUint(number, 10, 32)
		o, worse := strconv.ParseUint(offset, 10, 63)
		if bad != nil || worse != nil {
			return nil, 0, refuse("BAD_VALUE", field, "%s is no place to go on from: it is partition:offset, for several partitions with commas between, such as 0:17,1:4", plain.Quote(plain.Short(text, 100)))
		}
		out = append(out, &strandmqv1.ReadPlace{Partition: uint32(n), Offset: o})
	}
	return out, incarnation, nil
}
