package service

import "slices"

// GuardedParameter is a parameter that balancers refuse unless
// balancer.allow_parameters names it: in an engine it can cause a crash, run code, read
// files or open connections.
type GuardedParameter struct {
	Name string
	// Reason is what an engine does with it, for error messages.
	Reason string
}

// The guarded parameters that stand for URLs of images, audio and video in messages.
const (
	GuardedFileURLs    = "file_urls"
	GuardedPrivateURLs = "private_urls"
)

// guardedParameters is the table of defaults; docs/security.md has the advisories.
var guardedParameters = []GuardedParameter{
	{"prompt_embeds", "engines load it as a tensor, which has crashed them"},
	{"image_embeds", "engines load it as a tensor, which has crashed them"},
	{"audio_embeds", "engines load it as a tensor, which has crashed them"},
	{"kv_transfer_params", "it tells an engine which hosts to fetch KV memory from"},
	{"ec_transfer_params", "it tells an engine which hosts to fetch encoder memory from"},
	{"bootstrap_host", "it tells an engine which host to fetch KV memory from"},
	{"bootstrap_port", "it tells an engine which host to fetch KV memory from"},
	{"bootstrap_room", "it tells an engine which host to fetch KV memory from"},
	{"vllm_xargs", "it is passed to plugins and KV connectors of an engine without validation"},
	{"chat_template", "engines run it as a program without limits"},
	{"mm_processor_kwargs", "it sets how much memory an engine uses for an image"},
	{"media_io_kwargs", "it sets how an engine decodes images and video, and how many frames"},
	{"custom_logit_processor", "engines run it as a program"},
	{"guided_decoding_backend", "it selects backends with unbounded caches"},
	{GuardedFileURLs, "engines would read files of their machine"},
	{GuardedPrivateURLs, "engines would send requests into their network"},
}

// GuardedParameters returns all guarded parameters in a fixed order.
func GuardedParameters() []GuardedParameter { return slices.Clone(guardedParameters) }

// guardedNames are the values of balancer.allow_parameters.
func guardedNames() (names []string) {
	for _, p := range guardedParameters {
		names = append(names, p.Name)
	}
	return names
}
