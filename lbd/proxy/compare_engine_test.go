//go:build compare && linux

package proxy_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// metricsPage is the metrics page of an idle vLLM: the engine computes nothing, so that only proxies
// are compared.
const metricsPage = "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"compare\"} 0\n" +
	"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"compare\"} 0\n" +
	"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model_name=\"compare\"} 0\n"

// engineJob is the first message to the engine's process.
type engineJob struct {
	Replicas int           // number of addresses it listens on
	Events   int           // of a stream
	Gap      time.Duration // between two events of a stream
	HeldGap  time.Duration // between two events of a held stream
	Delay    time.Duration // before each response to a chat request
}

// compareEngine responds at once, on several addresses as if each were a replica.
type compareEngine struct {
	job engineJob

	mu       sync.Mutex
	released chan struct{} // closed to end held streams
}

// runEngine is the engine's process: it prints its addresses, ends the held streams at each further
// line of stdin, and exits at the end of stdin.
func runEngine(stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewReader(stdin)
	e := &compareEngine{released: make(chan struct{})}
	if err := readJSONLine(in, &e.job); err != nil {
		return err
	}
	var addresses []string
	for range e.job.Replicas {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addresses = append(addresses, l.Addr().String())
		go e.accept(l)
	}
	if err := json.NewEncoder(stdout).Encode(addresses); err != nil {
		return err
	}
	for {
		if _, err := in.ReadString('\n'); err != nil {
			return nil //nolint:nilerr // the process ends with its stdin
		}
		e.release()
	}
}

func (e *compareEngine) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.released)
	e.released = make(chan struct{})
}

func (e *compareEngine) hold() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.released
}

func (e *compareEngine) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "engine:", err)
			return
		}
		go func() {
			defer conn.Close()
			for in, s := bufio.NewReaderSize(conn, maxLine), (&engineConn{engine: e, conn: conn}); ; {
				if err := s.serve(in); err != nil {
					return // a proxy closes connections that it does not need
				}
			}
		}()
	}
}

// engineConn serves one connection, request by request.
type engineConn struct {
	engine *compareEngine
	conn   net.Conn
	body   []byte
	out    []byte
	piece  []byte
}

func (s *engineConn) serve(in *bufio.Reader) error {
	h, err := readHead(in)
	if err != nil {
		return err
	}
	s.body = append(s.body[:0], make([]byte, max(h.length, 0))...)
	if _, err := io.ReadFull(in, s.body); err != nil {
		return err
	}
	switch method, rest, _ := strings.Cut(h.first, " "); {
	case method == "POST" && strings.HasPrefix(rest, "/v1/chat/completions "):
		return s.chat()
	case strings.HasPrefix(rest, "/metrics "):
		return s.whole("200 OK", "text/plain; version=0.0.4", []byte(metricsPage))
	case strings.HasPrefix(rest, "/v1/models "):
		return s.whole("200 OK", "application/json", []byte(`{"object":"list","data":[{"id":"`+compareModel+`","object":"model"}]}`))
	default:
		return s.whole("404 Not Found", "text/plain", nil)
	}
}

func (s *engineConn) chat() error {
	at := bytes.LastIndex(s.body, []byte(markPrefix))
	if at < 0 || len(s.body) < at+len(markPrefix)+markDigits {
		return s.whole("400 Bad Request", "text/plain", []byte("no mark"))
	}
	time.Sleep(s.engine.job.Delay)
	mark := s.body[at+len(markPrefix):][:markDigits]
	if bytes.Contains(s.body, []byte(`"stream":true`)) {
		return s.stream(mark)
	}
	s.piece = appendAnswer(s.piece[:0], mark)
	return s.whole("200 OK", "application/json", s.piece)
}

// whole writes a response in one write.
func (s *engineConn) whole(status, kind string, body []byte) error {
	s.out = append(s.out[:0], "HTTP/1.1 "+status+"\r\nContent-Type: "+kind+"\r\nContent-Length: "...)
	s.out = strconv.AppendInt(s.out, int64(len(body)), 10)
	s.out = append(append(s.out, "\r\n\r\n"...), body...)
	_, err := s.conn.Write(s.out)
	return err
}

// stream writes its events with a pause before each but the first, one write each, so that each is a
// separate packet.
func (s *engineConn) stream(mark []byte) error {
	released := (<-chan struct{})(nil)
	gap, events := s.engine.job.Gap, s.engine.job.Events
	if bytes.Contains(s.body, []byte(holdUser)) {
		released, gap, events = s.engine.hold(), s.engine.job.HeldGap, 0
	}
	s.out = append(s.out[:0], "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"...)
	pause := time.NewTimer(gap)
	defer pause.Stop()
	for i := 0; ; i++ {
		if err := s.event(appendEvent(s.piece[:0], mark, i)); err != nil {
			return err
		}
		pause.Reset(gap)
		select {
		case <-released:
			return s.end()
		case <-pause.C:
		}
		if i+1 == events {
			return s.end()
		}
	}
}

// event sends the buffered bytes and one chunk.
func (s *engineConn) event(data []byte) error {
	s.piece = data
	s.out = append(strconv.AppendInt(s.out, int64(len(data)), 16), "\r\n"...)
	s.out = append(append(s.out, data...), "\r\n"...)
	_, err := s.conn.Write(s.out)
	s.out = s.out[:0]
	return err
}

// end sends the usage, if it was requested as vLLM requires it, and the end.
func (s *engineConn) end() error {
	if bytes.Contains(s.body, []byte(`"include_usage":true`)) {
		if err := s.event([]byte(usageText)); err != nil {
			return err
		}
	}
	if err := s.event([]byte(doneText)); err != nil {
		return err
	}
	_, err := io.WriteString(s.conn, "0\r\n\r\n")
	return err
}

// readJSONLine reads one line of a process's stdin or stdout.
func readJSONLine(in *bufio.Reader, v any) error {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}
