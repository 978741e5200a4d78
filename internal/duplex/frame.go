package duplex

import (
	"encoding/binary"
	"fmt"
	"io"
)

// next reads one frame header, and the whole frame unless it is DATA of the
// call, which is left to read.
func (s *Stream) next() error {
	h, err := s.in.Peek(frameHeader)
	if err != nil {
		return cut(err)
	}
	length := int(h[0])<<16 | int(h[1])<<8 | int(h[2])
	kind, flags, id := h[3], h[4], binary.BigEndian.Uint32(h[5:])&^(1<<31)
	if length > maxFrame {
		return fmt.Errorf("duplex: a frame of %d bytes; at most %d were announced: this is no HTTP/2 server", length, maxFrame)
	}
	_, _ = s.in.Discard(frameHeader) // it was just seen
	if kind == frameData {
		return s.data(length, flags, id)
	}
	if length > maxHeaders {
		return fmt.Errorf("duplex: a frame of kind %d and %d bytes; at most %d are taken", kind, length, maxHeaders)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(s.in, body); err != nil {
		return cut(err)
	}
	switch kind {
	case frameHeaders, frameContinuation:
		return s.block(kind, flags, body)
	case frameSettings:
		return s.set(flags, body)
	case framePing:
		if flags&flagAck == 0 {
			return s.put(append(appendHeader(nil, len(body), framePing, flagAck, 0), body...))
		}
	case frameWindow:
		if len(body) != 4 {
			return fmt.Errorf("duplex: a window update of %d bytes", len(body))
		}
		n := int64(binary.BigEndian.Uint32(body) &^ (1 << 31))
		s.flow.Lock()
		if id == 0 {
			s.roomConn += n
		} else {
			s.room += n
		}
		s.flow.Unlock()
		s.moved.Broadcast()
	case frameReset, frameGoAway:
		at := 0
		if kind == frameGoAway {
			at = 4
		}
		if len(body) < at+4 {
			return fmt.Errorf("duplex: a frame of kind %d and %d bytes", kind, len(body))
		}
		code := binary.BigEndian.Uint32(body[at:])
		if kind == frameGoAway && code == 0 {
			return nil // no new calls here; this one goes on
		}
		return &Error{Code: "unavailable", Message: fmt.Sprintf("the other side broke the stream off (HTTP/2 error %d)", code)}
	}
	return nil
}

// data begins a DATA frame, and gives the other side room for more.
func (s *Stream) data(length int, flags byte, id uint32) error {
	s.consumed += length
	s.left, s.padding = length, 0
	if flags&flagPadded != 0 {
		n, err := s.in.ReadByte()
		if err != nil {
			return cut(err)
		}
		s.padding = int(n)
		s.left = length - 1 - s.padding
	}
	if id != stream || s.left < 0 {
		return fmt.Errorf("duplex: DATA of %d bytes on stream %d: this is no HTTP/2 server", length, id)
	}
	s.ended = s.ended || flags&flagEndStream != 0
	if s.consumed >= window/2 {
		b := s.update[:0]
		for _, id := range [...]uint32{0, stream} {
			b = appendHeader(b, 4, frameWindow, 0, id)
			b = binary.BigEndian.AppendUint32(b, uint32(s.consumed))
		}
		s.consumed = 0
		return s.put(b)
	}
	return nil
}

// block takes a piece of a header block.
func (s *Stream) block(kind, flags byte, body []byte) error {
	if kind == frameHeaders {
		s.ended = s.ended || flags&flagEndStream != 0
		pad := 0
		if flags&flagPadded != 0 && len(body) > 0 {
			pad, body = int(body[0]), body[1:]
		}
		if flags&flagPriority != 0 && len(body) >= 5 {
			body = body[5:]
		}
		if pad > len(body) {
			return fmt.Errorf("duplex: headers with more padding than bytes")
		}
		s.headers = append(s.headers[:0], body[:len(body)-pad]...)
	} else {
		s.headers = append(s.headers, body...)
	}
	if len(s.headers) > maxHeaders {
		return fmt.Errorf("duplex: headers of more than %d bytes", maxHeaders)
	}
	if flags&flagEndHeaders == 0 {
		return nil
	}
	if _, err := s.decoder.Write(s.headers); err != nil {
		return fmt.Errorf("duplex: headers: %w", err)
	}
	if err := s.decoder.Close(); err != nil {
		return fmt.Errorf("duplex: headers: %w", err)
	}
	if s.status != "" && s.status != "200" {
		return s.refused()
	}
	return nil
}

// refused reads the answer of a server that did not begin the call.
func (s *Stream) refused() error {
	var body []byte
	status := s.status
	for !s.ended || s.left > 0 {
		if s.left == 0 {
			s.status = "" // trailers are none of the answer
			if err := s.next(); err != nil {
				return err
			}
			continue
		}
		if len(body)+s.left > maxRefusal {
			break
		}
		at := len(body)
		body = append(body, make([]byte, s.left)...)
		if err := s.read(body[at:], false); err != nil {
			return err
		}
	}
	return Refused(status, body)
}

// set takes the other side's settings.
func (s *Stream) set(flags byte, body []byte) error {
	if flags&flagAck != 0 {
		return nil
	}
	if len(body)%6 != 0 {
		return fmt.Errorf("duplex: settings of %d bytes", len(body))
	}
	s.flow.Lock()
	for ; len(body) > 0; body = body[6:] {
		v := binary.BigEndian.Uint32(body[2:])
		switch binary.BigEndian.Uint16(body) {
		case settingWindow:
			s.room += int64(v) - s.initial
			s.initial = int64(v)
		case settingFrame:
			s.frame = int(max(16384, min(v, maxFrame)))
		}
	}
	s.flow.Unlock()
	s.moved.Broadcast()
	return s.put(appendHeader(nil, 0, frameSettings, flagAck, 0))
}
