package engine

// Request is what is submitted. Times, counts and tokens of it come back in
// events under its ID.
type Request struct {
	// ID is chosen by the caller, unique among the requests in the engine.
	ID uint64
	// Prompt must stay unchanged until the request has finished, was cancelled
	// or was rejected.
	Prompt []Token
	// PromptTokens is the length of the prompt for an engine of NewLight, which
	// reads no Prompt; others read no PromptTokens.
	PromptTokens int
	// MaxNew is the most tokens that may be generated: what admission reserves
	// for. 0 means as many as OutputLen. It is cut to what the KV memory can
	// hold beside the prompt.
	MaxNew int
	// OutputLen is how many tokens the request will generate, at least 1.
	OutputLen int
	// Output, when set, is the answer itself (it must stay unchanged as Prompt
	// must), and its length replaces OutputLen. Otherwise Speech makes it up.
	Output []Token
	Speech Speech
	// Priority 0 is admitted before every other; anything else is priority 1
	// (SageServe 6.1).
	Priority int
}

// request is a Request inside the engine.
type request struct {
	id        uint64
	promptLen int
	need      int     // tokens to compute before decoding: of the prompt, after a preemption with those emitted so far
	seq       []Token // those tokens themselves, but for a light engine
	buf       []Token // storage for seq after a preemption
	out       []Token // tokens emitted, as far as anybody had to know them
	given     []Token // Request.Output
	speech    Speech
	outputLen int // tokens it will emit
	maxNew    int
	reason    Reason
	priority  int

	admitted bool // has been running at least once
	running  bool
	cached   int // of the prompt, at the first admission

	// While running:
	node     *node // locked end of what the cache holds of seq
	depth    int   // tokens from the root to node
	left     int   // tokens of seq still to compute
	held     int   // KV tokens outside the cache, but for those of decode steps
	decoding bool  // past its prefill
	base     int   // tokens emitted when it began to decode
	joined   int   // Engine.steps when it began to decode
}

// load fills a fresh or recycled request whose prompt has so many tokens.
func (r *request) load(q *Request, prompt, kvTokens int) {
	length := max(q.OutputLen, 1)
	if len(q.Output) > 0 {
		length = len(q.Output)
	}
	maxNew := q.MaxNew
	if maxNew <= 0 {
		maxNew = length
	}
	maxNew = min(maxNew, kvTokens-prompt)
	reason := ReasonStop
	if length >= maxNew {
		length, reason = maxNew, ReasonLength
	}
	*r = request{
		id: q.ID, promptLen: prompt, need: prompt, seq: q.Prompt, buf: r.buf[:0], out: r.out[:0],
		given: q.Output, speech: q.Speech, outputLen: length, maxNew: maxNew, reason: reason,
		priority: min(max(q.Priority, 0), 1),
	}
}

// materialise makes out hold the first n tokens of the answer and returns the
// text of the last one it made.
func (r *request) materialise(n int) (text string) {
	for len(r.out) < n {
		var t Token
		if r.given != nil {
			t = r.given[len(r.out)]
		} else {
			t, text = r.speech.Next()
		}
		r.out = append(r.out, t)
	}
	return text
}

// fresh is the part of the emitted tokens that seq does not hold.
func (r *request) fresh() []Token { return r.out[len(r.seq)-r.promptLen:] }

// queue is a double-ended queue of waiting requests.
type queue struct {
	items []*request
	head  int
}

func (q *queue) len() int { return len(q.items) - q.head }

func (q *queue) front() *request {
	if q.len() == 0 {
		return nil
	}
	return q.items[q.head]
}

func (q *queue) pushBack(r *request) {
	if q.head > 64 && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, r)
}

func (q *queue) pushFront(r *request) {
	if q.head > 0 {
		q.head--
		q.items[q.head] = r
		return
	}
	q.items = append(q.items, nil)
	copy(q.items[1:], q.items)
	q.items[0] = r
}

func (q *queue) popFront() {
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
}

func (q *queue) remove(r *request) {
	for i := q.head; i < len(q.items); i++ {
		if q.items[i] == r {
			q.items = append(q.items[:i], q.items[i+1:]...)
			return
		}
	}
}
