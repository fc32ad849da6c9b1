package openai

import (
	"bytes"
)

// Subject is the subject of a 404.
type Subject int

// The subjects.
const (
	AboutUnknown Subject = iota // the response does not name it
	AboutModel                  // the engine does not have the model
	AboutRequest                // something in the request does not exist
)

// SubjectOf404 returns the subject of an engine's 404. vLLM, SGLang and OpenAI name the model in
// the message, the parameter or the code.
func SubjectOf404(body []byte) Subject {
	found := AboutUnknown
	var read func(key, value []byte)
	read = func(key, value []byte) {
		switch string(key) {
		case `"error"`:
			members(value, read)
		case `"code"`, `"param"`:
			switch {
			case string(value) == `"model"` || string(value) == `"model_not_found"`:
				found = AboutModel
			case kindOf(value) == '"' && found == AboutUnknown:
				found = AboutRequest
			}
		case `"message"`, `"detail"`:
			if found == AboutUnknown && bytes.Contains(bytes.ToLower(value), []byte("model")) {
				found = AboutModel
			}
		}
	}
	members(body, read)
	return found
}
