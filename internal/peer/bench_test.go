//go:build unix

package peer

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// BenchmarkFrames sends messages from one node to another, over TLS on loopback, in
// one process: processor time is that of both ends, the kernel's part included.
func BenchmarkFrames(b *testing.B) {
	for _, size := range []int{100, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			var got atomic.Int64
			reached := make(chan struct{}, 1)
			target := int64(b.N)
			from, _ := benchPair(b, func(uint64, []byte) {
				if got.Add(1) == target {
					notify(reached)
				}
			})
			message := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			began := cpu()
			b.ResetTimer()
			for range b.N {
				for !from.Send(2, message) { // nobody writes to it, so it can be sent many times
					time.Sleep(200 * time.Microsecond) // the queue is full; a spin would be processor time in the figure
				}
			}
			<-reached
			b.StopTimer()
			spent := cpu() - began
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N), "cpu-ns/message")
		})
	}
}

// BenchmarkRoundTrip is the same with one message at a time, there and back.
func BenchmarkRoundTrip(b *testing.B) {
	back := make(chan struct{}, 1)
	var echo atomic.Pointer[Transport]
	from, to := benchPair(b, func(from uint64, m []byte) {
		if from == 1 {
			echo.Load().Send(1, m)
		} else {
			back <- struct{}{}
		}
	})
	echo.Store(to)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		from.Send(2, make([]byte, 100))
		<-back
	}
}

// BenchmarkLoopback is the yardstick: the same bytes over TCP without TLS and frames.
func BenchmarkLoopback(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buf := make([]byte, 64<<10)
		for {
			if _, err := conn.Read(buf); err != nil {
				return
			}
		}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	b.SetBytes(int64(len(buf)))
	began := cpu()
	b.ResetTimer()
	for range b.N {
		if _, err := conn.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	_ = conn.Close()
	<-done
	b.StopTimer()
	b.ReportMetric(float64((cpu()-began).Nanoseconds())/float64(b.N), "cpu-ns/message")
}

func benchPair(b *testing.B, deliver func(uint64, []byte)) (from, to *Transport) {
	b.Helper()
	a, err := NewAuthority("bench")
	if err != nil {
		b.Fatal(err)
	}
	ca, _ := a.PEM()
	var nodes []*Transport
	up := make(chan struct{}, 8)
	for n := uint64(1); n <= 2; n++ {
		dir := b.TempDir()
		csr, err := Request(dir)
		if err != nil {
			b.Fatal(err)
		}
		cert, err := a.Sign(csr, n)
		if err != nil {
			b.Fatal(err)
		}
		if err := Install(dir, cert, ca); err != nil {
			b.Fatal(err)
		}
		id, err := Load(dir)
		if err != nil {
			b.Fatal(err)
		}
		var store StoreID
		binary.LittleEndian.PutUint64(store[:], n)
		t, err := New(Config{Identity: id, Store: store, Boot: 1, Listen: "127.0.0.1:0", Silence: time.Minute, Deliver: deliver, Alive: func(_ uint64, is bool) {
			if is {
				up <- struct{}{}
			}
		}})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := t.Close(); err != nil {
				b.Error(err)
			}
		})
		nodes = append(nodes, t)
	}
	all := map[uint64]Member{1: {Address: nodes[0].Addr().String()}, 2: {Address: nodes[1].Addr().String()}}
	for _, t := range nodes {
		t.SetNodes(all)
	}
	<-up
	<-up
	return nodes[0], nodes[1]
}

// cpu is the processor time that this process took.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
