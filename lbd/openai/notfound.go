package openai

import (
	"bytes"
)

// Names404Model reports whether an engine's 404 says that the engine does not have the model. vLLM,
// SGLang and OpenAI name the model in the message, the parameter or the code. A parameter or code about
// something else has precedence over the message.
func Names404Model(body []byte) bool {
	model, other, inMessage := false, false, false
	var read func(key, value []byte)
	read = func(key, value []byte) {
		lower := bytes.ToLower(value)
		switch string(key) {
		case `"error"`:
			members(value, read)
		case `"code"`, `"param"`:
			switch {
			case string(lower) == `"model"` || bytes.HasPrefix(lower, []byte(`"model_not_`)):
				model = true
			case kindOf(value) == '"' && string(lower) != `"not_found"`: // that code fits every 404
				other = true
			}
		case `"message"`, `"detail"`:
			inMessage = inMessage || bytes.Contains(lower, []byte("model"))
		}
	}
	members(body, read)
	return model || inMessage && !other
}
