//go:build unix

package wire

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The benchmarks compare this transport with net/http's and with plain: the same bytes on a bare
// socket, without HTTP. The time of plain is the share of the kernel and the host.

const (
	benchBody   = `{"model":"llama","messages":[{"role":"user","content":"Name three rivers that cross a border, please."}],"max_tokens":64}`
	benchReply  = `{"choices":[{"message":{"content":"Rhine, Danube and Mekong."}}]}`
	benchStream = "HTTP/1.1 200 OK\r\nDate: Sat, 01 Aug 2026 10:00:00 GMT\r\nServer: uvicorn\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
	benchEvent  = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"llama","choices":[{"index":0,"delta":{"content":" word"}}]}` + "\n\n"
)

var benchAnswer = "HTTP/1.1 200 OK\r\nDate: Sat, 01 Aug 2026 10:00:00 GMT\r\nServer: uvicorn\r\nContent-Type: application/json\r\nContent-Length: " +
	strconv.Itoa(len(benchReply)) + "\r\n\r\n" + benchReply

// benchTransports returns the two transports under comparison, configured like the balancer's.
func benchTransports() map[string]http.RoundTripper {
	return map[string]http.RoundTripper{
		"wire": NewTransport(Options{}),
		"nethttp": &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 512, IdleConnTimeout: 90 * time.Second, DisableCompression: true, ReadBufferSize: 2 << 10,
		},
	}
}

// takeRaw reads one benchmark request with as little work as possible.
func takeRaw(host net.Conn, buf []byte) bool {
	for n, end := 0, -1; ; {
		m, err := host.Read(buf[n:])
		if err != nil {
			return false
		}
		n += m
		if end < 0 {
			end = bytes.Index(buf[:n], []byte("\r\n\r\n"))
		}
		if end >= 0 && n >= end+4+len(benchBody) {
			return true
		}
	}
}

func benchRequest(ctx context.Context, url string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(benchBody))
	if err != nil {
		panic(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "OpenAI/Python 1.68.2", "X-Request-Id": "req-0123456789abcdef",
		"X-Stainless-Lang": "python", "X-Stainless-Package-Version": "1.68.2", "X-Stainless-Os": "Linux", "X-Stainless-Runtime": "CPython",
	} {
		req.Header.Set(name, value)
	}
	return req
}

// processorTime returns the CPU time that this process has used so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPost measures a small request and its response. cpu-ns/op counts both parties: the client's
// share is what exceeds plain.
func BenchmarkPost(b *testing.B) {
	h := serve(b, func(host net.Conn, _ *bufio.Reader) {
		answer := []byte(benchAnswer)
		for buf := make([]byte, 4<<10); takeRaw(host, buf); {
			if _, err := host.Write(answer); err != nil {
				return
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		nc, err := net.Dial("tcp", h.listener.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer nc.Close()
		var sent bytes.Buffer
		_ = benchRequest(b.Context(), h.url).Write(&sent)
		buf := make([]byte, 4<<10)
		timed(b, 1, func() {
			_, _ = nc.Write(sent.Bytes())
			if _, err := io.ReadFull(nc, buf[:len(benchAnswer)]); err != nil {
				b.Fatal(err)
			}
		})
	})
	for name, rt := range benchTransports() {
		b.Run(name, func(b *testing.B) {
			defer closeIdle(rt)
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			req := benchRequest(ctx, h.url)
			buf := make([]byte, 4<<10)
			timed(b, 1, func() {
				req.Body, _ = req.GetBody()
				resp, err := rt.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				for err == nil {
					_, err = resp.Body.Read(buf)
				}
				resp.Body.Close()
				if err != io.EOF {
					b.Fatal(err)
				}
			})
		})
	}
}

// timed runs the measured code and reports the CPU time per unit.
func timed(b *testing.B, units float64, once func()) {
	b.ReportAllocs()
	began := processorTime()
	for b.Loop() {
		once()
	}
	b.ReportMetric(float64(processorTime()-began)/float64(b.N)/units, "cpu-ns/op")
}

// BenchmarkEvent measures one server-sent event of a stream in progress: the host sends the next one
// when the last was read.
func BenchmarkEvent(b *testing.B) {
	turn := make(chan struct{})
	chunk := []byte(strconv.FormatInt(int64(len(benchEvent)), 16) + "\r\n" + benchEvent + "\r\n")
	h := serve(b, func(host net.Conn, _ *bufio.Reader) {
		if !takeRaw(host, make([]byte, 4<<10)) {
			return
		}
		_, _ = io.WriteString(host, benchStream)
		for range turn {
			if _, err := host.Write(chunk); err != nil {
				return
			}
		}
	})
	defer close(turn)
	read := func(b *testing.B, r io.Reader) {
		buf := make([]byte, 4<<10)
		timed(b, 1, func() {
			turn <- struct{}{}
			if _, err := r.Read(buf); err != nil {
				b.Fatal(err)
			}
		})
	}
	b.Run("plain", func(b *testing.B) {
		nc, err := net.Dial("tcp", h.listener.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		_ = benchRequest(b.Context(), h.url).Write(nc)
		_, _ = io.ReadFull(nc, make([]byte, len(benchStream)))
		read(b, nc)
		nc.Close()
		hangUp(h, turn)
	})
	for name, rt := range benchTransports() {
		b.Run(name, func(b *testing.B) {
			defer closeIdle(rt)
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			resp, err := rt.RoundTrip(benchRequest(ctx, h.url))
			if err != nil {
				b.Fatal(err)
			}
			read(b, resp.Body)
			resp.Body.Close()
			hangUp(h, turn)
		})
	}
}

// hangUp makes the host detect that the response is no longer read.
func hangUp(h *host, turn chan<- struct{}) {
	for {
		h.mu.Lock()
		open := len(h.open)
		h.mu.Unlock()
		if open == 0 {
			return
		}
		select {
		case turn <- struct{}{}:
		default:
			runtime.Gosched()
		}
	}
}

// BenchmarkHeld measures the memory of a stream that waits for its next event, by the number of
// streams: B/stream is the growth of heap and stacks, including the host and the reader, which plain
// has too.
func BenchmarkHeld(b *testing.B) {
	const streams = 2000
	kinds := map[string]http.RoundTripper{"plain": nil}
	for name, rt := range benchTransports() {
		kinds[name] = rt
	}
	for name, rt := range kinds {
		b.Run(name, func(b *testing.B) {
			var total float64
			for range b.N {
				total += held(b, rt, streams)
			}
			b.ReportMetric(total/float64(b.N)/streams, "B/stream")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// held opens streams, lets a goroutine wait on each, and returns by how much memory grew.
func held(b *testing.B, rt http.RoundTripper, streams int) float64 {
	stay := make(chan struct{})
	h := serve(b, func(host net.Conn, _ *bufio.Reader) {
		if takeRaw(host, make([]byte, 1<<10)) {
			_, _ = io.WriteString(host, benchStream)
			<-stay
		}
	})
	before := inUse()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var opened, readers sync.WaitGroup
	bodies := make([]io.ReadCloser, streams)
	for i := range bodies {
		opened.Add(1)
		readers.Go(func() { // sends the request and reads, as a server's handler does
			bodies[i] = openStream(ctx, h, rt)
			opened.Done()
			_, _ = bodies[i].Read(make([]byte, directRead))
		})
		opened.Wait()
	}
	runtime.Gosched()
	grown := inUse() - before
	for _, body := range bodies {
		body.Close()
	}
	readers.Wait()
	close(stay)
	h.stop()
	return grown
}

func openStream(ctx context.Context, h *host, rt http.RoundTripper) io.ReadCloser {
	if rt != nil {
		resp, err := rt.RoundTrip(benchRequest(ctx, h.url))
		if err != nil {
			panic(err) // b.Fatal is for the benchmark's own goroutine
		}
		return resp.Body
	}
	nc, err := net.Dial("tcp", h.listener.Addr().String())
	if err != nil {
		panic(err)
	}
	_ = benchRequest(ctx, h.url).Write(nc)
	_, _ = io.ReadFull(nc, make([]byte, len(benchStream)))
	return nc
}

// inUse returns the memory of live objects and stacks.
func inUse() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}
