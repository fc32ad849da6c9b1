package core

const (
	// defaultAnswerTokens is the expected length of an answer before the first one of a model has
	// ended: about the mean of chat traffic.
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

func (a *answerLengths) add(tokens int) {
	if !a.known {
		a.mean, a.known = float64(tokens), true
		return
	}
	a.mean += answerWeight * (float64(tokens) - a.mean)
}

// work estimates the remaining tokens to process at a target: prompts without a first token, and
// the expected answers of all its requests minus the generated tokens. Progress is known per
// target, not per request, so a request that ends without a token count removes its share.
type work struct {
	promptTokens int // of all prompts there
	prefilling   int // tokens that those prompts must still compute, if known
	prompts      int
	answers      int
	generated    int // of answers, without those of ended requests
}

// remaining returns the remaining tokens; never negative, and 0 when nothing is outstanding.
func (w *work) remaining() int { return w.prompts + max(0, w.answers-w.generated) }

// tokens returns the length of r's prompt, estimated if there is no count.
func (r *request) tokens() int {
	if r.PromptTokens > 0 {
		return min(r.PromptTokens, maxTokens)
	}
	return min((r.Prompt.Bytes()+bytesPerToken-1)/bytesPerToken, maxTokens)
}

// context returns the tokens that the requests there attend to: their prompts and the generated
// parts of their answers.
func (w *work) context() int { return w.promptTokens + w.generated }

// context returns the tokens that the requests at t attend to, including failed requests that still
// count.
func (t *target) context() int { return t.work.context() + t.failedLoad.context }

// estimateCost sets the expected cost of r at the target that it is sent to.
func (b *Balancer) estimateCost(r *request) {
	r.prefilled = false
	r.promptCost = r.tokens()
	r.answerCost = r.MaxTokens
	if r.MaxTokens <= 0 {
		r.answerCost = b.queue(r.Model).answerLengths.expected()
	}
	r.answerCost = min(r.answerCost, maxTokens)
}

func (w *work) add(r *request) {
	w.prompts += r.promptCost
	w.prefilling += r.uncached
	w.promptTokens += r.promptCost
	w.answers += r.answerCost
}

// firstToken ends r's prefill.
func (w *work) firstToken(r *request) {
	if !r.prefilled {
		r.prefilled = true
		w.prompts -= r.promptCost
		w.prefilling -= r.uncached
	}
}

// remove removes r; last = nothing else is left there.
func (w *work) remove(r *request, out *Outcome, last bool) {
	if last {
		*w = work{}
		return
	}
	w.firstToken(r)
	share := 0
	if w.answers > 0 {
		share = int(float64(w.generated) * float64(r.answerCost) / float64(w.answers))
	}
	if out != nil && out.OutputTokens.Known {
		share = max(0, out.OutputTokens.Value)
	}
	w.generated -= min(share, w.generated)
	w.promptTokens -= r.promptCost
	w.answers -= r.answerCost
}

// progress records tokens generated at the target.
func (w *work) progress(tokens int) {
	if w.prompts > 0 || w.answers > 0 {
		w.generated += min(max(0, tokens), maxTokens)
	}
}
