package deploy

// Default images of engines: releases without known remote crashes. docs/security.md describes how
// they are chosen and kept current. Update it with them; a test compares both.
const (
	imageVLLM   = "vllm/vllm-openai:v0.33.0"
	imageSGLang = "lmsysorg/sglang:v0.5.23"
)
