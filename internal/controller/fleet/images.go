package fleet

// Images of engines where service.yaml does not name others. They are releases without
// a known way to crash them from outside: docs/security.md says how they are chosen and
// kept current. Whoever raises one changes that page too; a test compares them.
const (
	imageVLLM   = "vllm/vllm-openai:v0.33.0"
	imageSGLang = "lmsysorg/sglang:v0.5.23"
)
