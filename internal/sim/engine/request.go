package engine

// Request is a request to an engine. Events refer to it by its ID.
type Request struct {
	// ID is chosen by the caller, unique among the requests in the engine.
	ID uint64
	// Prompt must not change until the request has finished, was cancelled or was rejected.
	Prompt []Token
	// PromptTokens is the length of the prompt for an engine of NewLight, which ignores Prompt; other
	// engines ignore PromptTokens.
	PromptTokens int
	// MaxNew is the maximum number of tokens to generate, which admission reserves for; 0 = OutputLen.
	// It is limited to the KV memory left by the prompt.
	MaxNew int
	// OutputLen is the number of tokens that the request will generate, at least 1.
	OutputLen int
	// Output, if set, is the response (it must not change, like Prompt), and its length replaces
	// OutputLen. Otherwise Speech generates the response.
	Output []Token
	Speech Speech
	// Priority 0 is admitted before all others; other values count as priority 1 (SageServe 6.1).
	Priority int
}

// request is a Request in the engine.
type request struct {
	id              uint64
	promptLen       int
	tokensToCompute int     // tokens to compute before decoding: the prompt, plus emitted tokens after a preemption
	seq             []Token // those tokens; nil in a light engine
	buf             []Token // storage for seq after a preemption
	out             []Token // emitted tokens, as far as generated
	presetOutput    []Token // Request.Output
	speech          Speech
	outputLen       int // tokens it will emit
	maxNew          int
	reason          Reason
	priority        int

	admitted bool // has been running at least once
	running  bool
	cached   int // of the prompt, at the first admission

	// While running:
	node          *node // locked end of the cached part of seq
	depth         int   // tokens from the root to node
	uncomputed    int   // uncomputed tokens of seq
	privateTokens int   // KV tokens outside the cache, except those of decode steps
	decoding      bool  // past its prefill
	base          int   // tokens emitted when decoding started
	joined        int   // Engine.steps when decoding started
}

// reset initialises a new or reused request with a prompt of that many tokens.
func (r *request) reset(q *Request, prompt, kvTokens int) {
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
		id: q.ID, promptLen: prompt, tokensToCompute: prompt, seq: q.Prompt, buf: r.buf[:0], out: r.out[:0],
		presetOutput: q.Output, speech: q.Speech, outputLen: length, maxNew: maxNew, reason: reason,
		priority: min(max(q.Priority, 0), 1),
	}
}

// materialise generates the response up to n tokens and returns the text of the last generated one.
func (r *request) materialise(n int) (text string) {
	for len(r.out) < n {
		var t Token
		if r.presetOutput != nil {
			t = r.presetOutput[len(r.out)]
		} else {
			t, text = r.speech.Next()
		}
		r.out = append(r.out, t)
	}
	return text
}

// newOutput returns the emitted tokens that are not in seq.
func (r *request) newOutput() []Token { return r.out[len(r.seq)-r.promptLen:] }

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

func (q *queue) removeRequest(r *request) {
	for i := q.head; i < len(q.items); i++ {
		if q.items[i] == r {
			q.items = append(q.items[:i], q.items[i+1:]...)
			return
		}
	}
}
