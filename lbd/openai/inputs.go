package openai

import "slices"

// scoreInputs are the fields of /score with texts or parts of messages: of vLLM, its earlier
// versions, and SGLang.
var scoreInputs = []string{"queries", "documents", "data_1", "data_2", "text_1", "text_2", "query", "items"}

// score writes the texts of a score in the order of the body.
func (r *Rendering) score(c *Call) {
	members(c.body, func(key, value []byte) {
		if slices.Contains(scoreInputs, string(key[1:len(key)-1])) {
			r.texts(value)
			r.writeString("\x00")
		}
	})
}

// nothing is for prompts that engines do not cache.
func (r *Rendering) nothing(*Call) {}

func (r *Rendering) speech(c *Call) {
	r.texts(c.input.of(c.body))
	r.guardMedia(c)
}

func (r *Rendering) image(c *Call) {
	r.texts(c.prompt.of(c.body))
	r.guardMedia(c)
}

// guardMedia finds the guarded parameters of a body whose fields are those of a message part: URLs of
// images, or the voice to imitate.
func (r *Rendering) guardMedia(c *Call) {
	members(c.body, func(key, value []byte) {
		r.guarded |= guardedPart(key, value) | guardedParts(value, partsDepth)
		if string(key) == `"ref_audio"` && kindOf(value) == '"' {
			r.guarded |= guardedMedia(value)
		}
	})
}
