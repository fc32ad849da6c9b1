package openai

// Endpoint is an API endpoint that engines serve.
type Endpoint struct {
	Path string // below the host
	// streams: the response may be SSE, and its usage must be requested.
	streams bool
	// chat: the prompt is messages.
	chat bool
	// Messages: the API is Anthropic's Messages API; its responses, streams and errors have that
	// API's format.
	Messages bool
	// MarksEnd: a complete stream ends in an event that marks its end: [DONE] or message_stop.
	MarksEnd bool
	// Stored: the engine stores the answer under its id, so that a later request can continue it.
	// Continues: the body may name such an answer (previous_response_id).
	Stored, Continues bool
	// Form: the body is multipart/form-data and not JSON.
	Form bool
	// Upgrades: the request opens a WebSocket, and its model is a parameter of the URL.
	Upgrades bool
	// tokenizes: the engine only tokenizes or renders the prompt, and does not run the model.
	tokenizes bool
	// Opaque: the prompt or the answer is audio or an image. Its tokens are unknown unless the engine
	// reports them. An answer that is not JSON is forwarded as it arrives.
	Opaque bool
	// render writes the prompt into a key.
	render func(*Rendering, *Call)
	// extend appends the beginning of an answer to the prompt; nil if answers cannot be continued.
	// AnyEngine: every kind of engine supports such a continuation.
	extend    func(c *Call, soFar []byte) (edits []Edit, ok bool)
	AnyEngine bool
	// boundReached is the final chunk, without its head, of an answer that reached the client's
	// bound.
	boundReached string
}

// Streams reports whether responses of the endpoint may be streams of server-sent events.
func (e *Endpoint) Streams() bool { return e.streams || e.Stored || e.Messages && e.MarksEnd }

// Endpoints that engines serve.
var endpoints = map[string]*Endpoint{
	"/v1/chat/completions": {
		Path: "/v1/chat/completions", streams: true, chat: true, MarksEnd: true, render: (*Rendering).chat, extend: (*Call).extendChat,
		boundReached: `"object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]`,
	},
	"/v1/completions": {
		Path: "/v1/completions", streams: true, MarksEnd: true, render: (*Rendering).completion, extend: (*Call).extendPrompt, AnyEngine: true,
		boundReached: `"object":"text_completion","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}]`,
	},
	"/v1/responses":              {Path: "/v1/responses", Stored: true, Continues: true, render: (*Rendering).responses},
	"/v1/responses/compact":      {Path: "/v1/responses/compact", Continues: true, render: (*Rendering).responses},
	"/v1/responses/input_tokens": {Path: "/v1/responses/input_tokens", Continues: true, tokenizes: true, render: (*Rendering).responses},
	pathMessages:                 {Path: pathMessages, Messages: true, MarksEnd: true, render: (*Rendering).messagesCall},
	pathCountTokens:              {Path: pathCountTokens, Messages: true, tokenizes: true, render: (*Rendering).countedMessages},
	"/v1/embeddings":             {Path: "/v1/embeddings", render: (*Rendering).embeddings},
	"/pooling":                   {Path: "/pooling", render: (*Rendering).embeddings},
	"/classify":                  {Path: "/classify", render: (*Rendering).embeddings},
	"/v1/classify":               {Path: "/v1/classify", render: (*Rendering).embeddings},
	"/v1/rerank":                 {Path: "/v1/rerank", render: (*Rendering).rerank},
	"/v2/rerank":                 {Path: "/v2/rerank", render: (*Rendering).rerank},
	"/rerank":                    {Path: "/rerank", render: (*Rendering).rerank},
	"/v1/score":                  {Path: "/v1/score", render: (*Rendering).score},
	"/score":                     {Path: "/score", render: (*Rendering).score},

	"/tokenize":                   {Path: "/tokenize", tokenizes: true, render: (*Rendering).tokenize},
	"/detokenize":                 {Path: "/detokenize", tokenizes: true, render: (*Rendering).nothing},
	"/v1/chat/completions/render": {Path: "/v1/chat/completions/render", chat: true, tokenizes: true, render: (*Rendering).chat},
	"/v1/completions/render":      {Path: "/v1/completions/render", tokenizes: true, render: (*Rendering).completion},

	"/v1/realtime":             {Path: "/v1/realtime", Upgrades: true, Opaque: true, render: (*Rendering).nothing},
	"/v1/audio/transcriptions": {Path: "/v1/audio/transcriptions", Form: true, Opaque: true, render: (*Rendering).nothing},
	"/v1/audio/translations":   {Path: "/v1/audio/translations", Form: true, Opaque: true, render: (*Rendering).nothing},
	"/v1/audio/speech":         {Path: "/v1/audio/speech", Opaque: true, render: (*Rendering).speech},
	"/v1/images/generations":   {Path: "/v1/images/generations", Opaque: true, render: (*Rendering).image},
}

// Method returns the HTTP method of the endpoint's requests.
func (e *Endpoint) Method() string {
	if e.Upgrades {
		return "GET"
	}
	return "POST"
}

// EndpointAt returns the endpoint of a path; nil if engines do not serve the path.
func EndpointAt(path string) *Endpoint { return endpoints[path] }

// EstimatesTokens reports whether the tokens that an engine does not report may be estimated from the
// text of the request.
func (e *Endpoint) EstimatesTokens() bool { return !e.tokenizes && !e.Opaque }

// FallsBack reports whether another model may serve a request to the endpoint. Embeddings and scores of
// two models cannot be compared, and a stored answer belongs to its model.
func (e *Endpoint) FallsBack() bool { return e.streams && !e.Stored }
