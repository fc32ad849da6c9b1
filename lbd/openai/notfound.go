package openai

import (
	"bytes"
)

// Names404Model reports whether an engine's 404 says that the engine does not have the model. vLLM,
// SGLang and OpenAI name the model in the message, the parameter or the code. A parameter or code about
// something else has precedence over the message.
func Names404Model(body []byte) bool {
	model, other := false, false
	var read func(key, value []byte)
	read = func(key, value []byte) {
		switch string(key) {
		case `"error"`:
			members(value, read)
		case `"code"`, `"param"`:
			switch {
			case string(value) == `"model"` || string(value) == `"model_not_found"`:
				model = true
			case kindOf(value) == '"' && !model:
				other = true
			}
		case `"message"`, `"detail"`:
			if !other && bytes.Contains(bytes.ToLower(value), []byte("model")) {
				model = true
			}
		}
	}
	members(body, read)
	return model
}
