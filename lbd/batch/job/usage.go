package job

import "encoding/json"

// Usage is the tokens that the completed requests of a batch used, as in OpenAI's API.
type Usage struct {
	InputTokens        int64         `json:"input_tokens"`
	InputTokensDetails InputDetails  `json:"input_tokens_details"`
	OutputTokens       int64         `json:"output_tokens"`
	OutputDetails      OutputDetails `json:"output_tokens_details"`
	TotalTokens        int64         `json:"total_tokens"`
}

// InputDetails are details of Usage.InputTokens.
type InputDetails struct {
	CachedTokens int64 `json:"cached_tokens"` // read from caches of engines
}

// OutputDetails are details of Usage.OutputTokens.
type OutputDetails struct {
	ReasoningTokens int64 `json:"reasoning_tokens"`
}

// Add adds the usage of a request.
func (u *Usage) Add(v Usage) {
	u.InputTokens += v.InputTokens
	u.InputTokensDetails.CachedTokens += v.InputTokensDetails.CachedTokens
	u.OutputTokens += v.OutputTokens
	u.OutputDetails.ReasoningTokens += v.OutputDetails.ReasoningTokens
	u.TotalTokens = u.InputTokens + u.OutputTokens
}

// UsageOf returns the usage that a response states; zero if it states none. The Responses API names
// the fields as a batch does, the other endpoints have prompt and completion tokens.
func UsageOf(body []byte) (u Usage) {
	var response struct {
		Usage struct {
			Usage
			Prompt        int64         `json:"prompt_tokens"`
			Completion    int64         `json:"completion_tokens"`
			PromptDetails InputDetails  `json:"prompt_tokens_details"`
			OtherDetails  OutputDetails `json:"completion_tokens_details"`
		} `json:"usage"`
	}
	if json.Unmarshal(body, &response) != nil {
		return u
	}
	r := &response.Usage
	r.InputTokens += r.Prompt
	r.OutputTokens += r.Completion
	r.InputTokensDetails.CachedTokens += r.PromptDetails.CachedTokens
	r.Usage.OutputDetails.ReasoningTokens += r.OtherDetails.ReasoningTokens
	if r.InputTokens < 0 || r.OutputTokens < 0 { // of a broken engine
		return u
	}
	u.Add(r.Usage)
	return u
}
