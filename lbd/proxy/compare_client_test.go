//go:build compare && linux

package proxy_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// clientJob is one round of a client's process.
type clientJob struct {
	Address     string
	Connections int
	Length      time.Duration // no request starts later than this
	Burst       time.Duration // all connections send their next request at the same time, once in this time; 0 = after each response
	Stream      bool
	Events      int    // of a stream
	Hold        bool   // one stream per connection, which lasts until the engine ends it
	Seed        uint16 // makes the conversations of each round different
}

// clientResult is the result of a round.
type clientResult struct {
	Requests int
	Events   int // of streams, without [DONE]
	Reads    int // reads of the clients' sockets that returned bytes
	Took     time.Duration
	Median   time.Duration // until the response, or the first event of a stream
	P99      time.Duration
	Failures []string // of each connection that failed; it sends no further requests
	Held     int      // users without a failure; if Hold, all concurrently
}

// Limits of the client.
const (
	answerTimeout = time.Minute // a response that takes longer has failed
	openers       = 64          // held streams that are being opened concurrently
	shownFailures = 5
)

// runClient is the client's process: it reads a job, prints "ready" (or, when streams are held,
// "held"), reads a line, and prints the result.
func runClient(stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewReader(stdin)
	var job clientJob
	if err := readJSONLine(in, &job); err != nil {
		return err
	}
	users := make([]*compareUser, job.Connections)
	for i := range users {
		users[i] = newUser(&job, i)
	}
	var result clientResult
	var err error
	if job.Hold {
		result, err = holdStreams(users, in, stdout)
	} else {
		result, err = askInLoops(users, job.Length, in, stdout)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(result)
}

// askInLoops makes each user send requests one after the other.
func askInLoops(users []*compareUser, length time.Duration, in *bufio.Reader, stdout io.Writer) (clientResult, error) {
	for _, u := range users {
		if u.err = u.dial(); u.err == nil {
			defer u.conn.Close()
		}
	}
	fmt.Fprintln(stdout, "ready")
	if _, err := in.ReadString('\n'); err != nil {
		return clientResult{}, err
	}
	began := time.Now()
	var wg sync.WaitGroup
	for _, u := range users {
		wg.Go(func() {
			for u.err == nil && time.Since(began) < length {
				u.err = u.ask(nil)
				u.awaitBurst(began)
			}
		})
	}
	wg.Wait()
	return sumUp(users, time.Since(began)), nil
}

// awaitBurst waits until the next burst, if requests come in bursts.
func (u *compareUser) awaitBurst(began time.Time) {
	if every := u.job.Burst; every > 0 {
		time.Sleep(every - time.Since(began)%every)
	}
}

// holdStreams opens a stream for each user, reports when all are open, and reads them to their ends.
func holdStreams(users []*compareUser, in *bufio.Reader, stdout io.Writer) (clientResult, error) {
	began := time.Now()
	opening := make(chan struct{}, openers)
	var held, ended sync.WaitGroup
	held.Add(len(users))
	for _, u := range users {
		ended.Go(func() {
			opening <- struct{}{}
			once := sync.OnceFunc(func() {
				<-opening
				held.Done()
			})
			defer once()
			if u.err = u.dial(); u.err == nil {
				defer u.conn.Close()
				u.err = u.ask(once)
			}
		})
	}
	held.Wait()
	fmt.Fprintln(stdout, "held")
	if _, err := in.ReadString('\n'); err != nil {
		return clientResult{}, err
	}
	ended.Wait()
	return sumUp(users, time.Since(began)), nil
}

// sumUp merges the results of the users.
func sumUp(users []*compareUser, took time.Duration) clientResult {
	r := clientResult{Took: took}
	var waits []time.Duration
	for i, u := range users {
		r.Requests += len(u.waits)
		r.Events += u.events
		waits = append(waits, u.waits...)
		if u.conn != nil {
			r.Reads += u.reads
		}
		if u.err == nil {
			r.Held++
		} else if len(r.Failures) < shownFailures {
			r.Failures = append(r.Failures, fmt.Sprintf("connection %d, request %d: %v", i, len(u.waits)+1, u.err))
		}
	}
	if slices.Sort(waits); len(waits) > 0 {
		r.Median, r.P99 = waits[len(waits)/2], waits[len(waits)*99/100]
	}
	return r
}

// compareUser is one connection and its user.
type compareUser struct {
	job     *clientJob
	number  int
	conn    net.Conn
	in      *bufio.Reader
	request stencil
	asked   int
	out     []byte
	got     []byte
	want    []byte
	waits   []time.Duration
	events  int
	reads   int
	err     error
}

func newUser(job *clientJob, number int) *compareUser {
	return &compareUser{job: job, number: number, request: cut(requestText(job, number%systemTexts))}
}

// requestText returns a request of exactly bodySize bytes, with gaps for the conversation and the
// mark. The gap of the conversation precedes the text that its turns share.
func requestText(job *clientJob, system int) string {
	extra := `,"stream":` + strconv.FormatBool(job.Stream)
	if job.Hold {
		extra += "," + holdUser
	}
	open := `{"model":"` + compareModel + `","max_tokens":64` + extra + `,"messages":[{"role":"system","content":"` + prose(systemSize, system)
	open += `"},{"role":"user","content":"################ ` + prose(historySize, systemTexts) + `"},{"role":"assistant","content":"I see."},{"role":"user","content":"`
	end := ` ` + markPrefix + strings.Repeat("#", markDigits) + `"}]}`
	return requestHead() + open + prose(bodySize-len(open)-len(end), systemTexts+1) + end
}

func requestHead() string {
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: compare\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", bodySize)
}

// prose returns text of a number of bytes; different numbers result in different texts.
func prose(size, number int) string {
	words := []string{"amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll", "lagoon", "meadow"}
	var b strings.Builder
	for i := number + 1; b.Len() < size; i += number + 1 {
		b.WriteString(words[(i+i/len(words))%len(words)])
		b.WriteByte(' ')
	}
	return b.String()[:size]
}

func (u *compareUser) dial() error {
	conn, err := net.Dial("tcp", u.job.Address)
	if err != nil {
		return err
	}
	u.conn, u.in = conn, bufio.NewReaderSize(countedReads{conn, &u.reads}, maxLine)
	return nil
}

// countedReads counts the reads that return bytes.
type countedReads struct {
	r io.Reader
	n *int
}

func (c countedReads) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if n > 0 {
		*c.n++
	}
	return n, err
}

// ask sends the next request and compares the response with the expected one. opened, if not nil, is
// called at the first event of a stream.
func (u *compareUser) ask(opened func()) error {
	var conversation, mark [markDigits]byte
	name := uint64(u.job.Seed)<<48 | uint64(u.number)<<32
	digits(conversation[:], name|uint64(u.asked/turns))
	digits(mark[:], name|uint64(u.asked))
	u.asked++
	u.out = u.request.fill(u.out[:0], conversation[:], mark[:])
	began := time.Now()
	if err := u.conn.SetDeadline(began.Add(answerTimeout)); err != nil {
		return err
	}
	if _, err := u.conn.Write(u.out); err != nil {
		return err
	}
	h, err := readHead(u.in)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(h.first, "HTTP/1.1 200 ") {
		return fmt.Errorf("want status 200, got %q", h.first)
	}
	if u.job.Stream {
		return u.checkStream(h, mark[:], began, opened)
	}
	return u.checkAnswer(h, mark[:], began)
}

// checkAnswer reads a whole response.
func (u *compareUser) checkAnswer(h chunkHead, mark []byte, began time.Time) error {
	u.want = appendAnswer(u.want[:0], mark)
	u.got = u.got[:0]
	switch {
	case h.chunked:
		for {
			at := len(u.got)
			var err error
			if u.got, err = readChunk(u.in, u.got); err != nil {
				return err
			}
			if len(u.got) == at {
				break
			}
		}
	case h.length >= 0:
		u.got = slices.Grow(u.got, h.length)[:h.length]
		if _, err := io.ReadFull(u.in, u.got); err != nil {
			return err
		}
	default:
		return errors.New("want the length of the answer or chunks, got neither")
	}
	if !bytes.Equal(u.got, u.want) {
		return fmt.Errorf("want the answer %q, got %q", u.want, u.got)
	}
	u.waits = append(u.waits, time.Since(began))
	return nil
}

// checkStream reads a stream: its events in order, [DONE], and the end.
func (u *compareUser) checkStream(h chunkHead, mark []byte, began time.Time, opened func()) error {
	if !h.chunked {
		return errors.New("want a stream in chunks, got none")
	}
	u.got = u.got[:0]
	var wait time.Duration
	for events := 0; ; {
		at := len(u.got)
		var err error
		if u.got, err = readChunk(u.in, u.got); err != nil {
			return fmt.Errorf("after event %d: %w", events, err)
		}
		if len(u.got) == at {
			return u.checkEnd(events, wait)
		}
		for u.takeEvent(mark, events) {
			if events++; events == 1 {
				wait = time.Since(began)
				if opened != nil {
					opened()
				}
			}
		}
		if u.job.Hold { // the next event may take as long as the first
			_ = u.conn.SetDeadline(time.Now().Add(answerTimeout))
		}
	}
}

// takeEvent removes event number i from the received bytes, if it is complete.
func (u *compareUser) takeEvent(mark []byte, i int) bool {
	u.want = appendEvent(u.want[:0], mark, i)
	if !bytes.HasPrefix(u.got, u.want) {
		return false
	}
	u.got = u.got[:copy(u.got, u.got[len(u.want):])]
	return true
}

// checkEnd checks that a stream that ended after a number of events was complete: the remaining bytes
// must be its [DONE] and nothing else.
func (u *compareUser) checkEnd(events int, wait time.Duration) error {
	if string(u.got) != doneText {
		return fmt.Errorf("after event %d: want %q or [DONE], got %q", events, u.want, u.got)
	}
	if events != u.job.Events && !u.job.Hold || events == 0 {
		return fmt.Errorf("want %d events, got %d", u.job.Events, events)
	}
	u.waits = append(u.waits, wait)
	u.events += events
	return nil
}
