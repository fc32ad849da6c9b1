package core

const (
	// defaultAnswerTokens is the expected length of an answer before the first one of a model has
	// ended: approximately the mean of chat traffic, because the answers of many requests are summed. The cost
	// policy weighs a single request and assumes the median: policy.CostConstants.DecodeSteps.
	defaultAnswerTokens = 256
	// answerWeight is the weight of each new answer in the running mean.
	answerWeight = 0.05
	// bytesPerToken estimates the tokens of a prompt without a count.
	bytesPerToken = 4
	// maxTokens bounds every figure, so that a client's max_tokens cannot make sums overflow.
	maxTokens = 1 << 24
	// maxAnswers bounds the number of answers per request, for the same reason.
	maxAnswers = 1 << 10
)

// answerLengths is the running mean (EWMA) of the lengths of a model's answers.
type answerLengths struct {
	mean  float64
	known bool
}

func (a *answerLengths) expected() int {
	if !a.known {
		return defaultAnswerTokens
	}
	return int(a.mean + 0.5)
}

func (a *answerLengths) addLength(tokens int) {
	if !a.known {
		a.mean, a.known = float64(tokens), true
		return
	}
	a.mean += answerWeight * (float64(tokens) - a.mean)
}

// work estimates the remaining tokens to process at a target: the prompts of requests without a first
// token, and the expected answers of all its requests minus the generated tokens. Generated tokens are
// counted per target, not per request: for a request that ends without a token count, a share
// proportional to its expected answer is subtracted.
type work struct {
	promptTokens        int // of all prompts there
	pendingPromptTokens int // of the prompts of requests without a first token
	prefillTokens       int // the uncached part of pendingPromptTokens, as expected
	answerTokens        int // expected, of all answers there
	generatedTokens     int // of answers, without those of ended requests
}

// remaining returns the remaining tokens. It is never negative, and 0 when nothing is outstanding.
func (w *work) remaining() int {
	return w.pendingPromptTokens + max(0, w.answerTokens-w.generatedTokens)
}

// promptLength returns the length of r's prompt, estimated if there is no count.
func (r *request) promptLength() int {
	if r.PromptTokens > 0 {
		return min(r.PromptTokens, maxTokens)
	}
	return min((r.Prompt.Bytes()+bytesPerToken-1)/bytesPerToken, maxTokens)
}

// context returns the tokens that the requests there attend to: their prompts and the generated
// parts of their answers.
func (w *work) context() int { return w.promptTokens + w.generatedTokens }

// context returns the tokens that the requests at t attend to, including failed requests that still
// count.
func (t *target) context() int { return t.work.context() + t.failedLoad.context }

// estimateWork sets the expected work of r at the target that it is sent to.
func (b *Balancer) estimateWork(r *request) {
	r.prefilled = false
	r.expectedPrompt = r.promptLength()
	r.expectedAnswer = r.MaxTokens
	if r.MaxTokens <= 0 {
		r.expectedAnswer = b.queue(r.Model).answerLengths.expected()
	}
	r.expectedAnswer = min(r.expectedAnswer, maxTokens)
}

func (w *work) addRequest(r *request) {
	w.pendingPromptTokens += r.expectedPrompt
	w.prefillTokens += r.uncached
	w.promptTokens += r.expectedPrompt
	w.answerTokens += r.expectedAnswer
}

// endPrefill ends r's prefill.
func (w *work) endPrefill(r *request) {
	if !r.prefilled {
		r.prefilled = true
		w.pendingPromptTokens -= r.expectedPrompt
		w.prefillTokens -= r.uncached
	}
}

// removeRequest removes r; last = no other request remains there.
func (w *work) removeRequest(r *request, out *Outcome, last bool) {
	if last {
		*w = work{}
		return
	}
	w.endPrefill(r)
	share := 0
	if w.answerTokens > 0 {
		share = int(float64(w.generatedTokens) * float64(r.expectedAnswer) / float64(w.answerTokens))
	}
	if out != nil && out.OutputTokens.Known {
		share = max(0, out.OutputTokens.Value)
	}
	w.generatedTokens -= min(share, w.generatedTokens)
	w.promptTokens -= r.expectedPrompt
	w.answerTokens -= r.expectedAnswer
}

// addGenerated records tokens generated at the target.
func (w *work) addGenerated(tokens int) {
	if w.pendingPromptTokens > 0 || w.answerTokens > 0 {
		w.generatedTokens += min(max(0, tokens), maxTokens)
	}
}
