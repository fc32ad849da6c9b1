package service

import "slices"

// GuardedParameter is a request parameter that balancers reject unless balancer.allow_parameters
// contains it: in an engine it can cause a crash, run code, read files or open connections.
type GuardedParameter struct {
	Name string
	// Reason is the effect in an engine, for error messages.
	Reason string
}

// The guarded parameters for URLs of images, audio and video in messages.
const (
	GuardedFileURLs    = "file_urls"
	GuardedPrivateURLs = "private_urls"
)

// guardedParameters is the table of guarded parameters; docs/security.md lists the advisories.
var guardedParameters = []GuardedParameter{
	{"prompt_embeds", "engines load it as a tensor, which has crashed them"},
	{"image_embeds", "engines load it as a tensor, which has crashed them"},
	{"audio_embeds", "engines load it as a tensor, which has crashed them"},
	{"kv_transfer_params", "it sets the hosts from which an engine fetches KV memory"},
	{"ec_transfer_params", "it sets the hosts from which an engine fetches encoder memory"},
	{"bootstrap_host", "it sets the host from which an engine fetches KV memory"},
	{"bootstrap_port", "it sets the host from which an engine fetches KV memory"},
	{"bootstrap_room", "it sets the host from which an engine fetches KV memory"},
	{"vllm_xargs", "it is passed to plugins and KV connectors of an engine without validation"},
	{"chat_template", "engines run it as a program without limits"},
	{"mm_processor_kwargs", "it sets how much memory an engine uses for an image"},
	{"media_io_kwargs", "it sets how an engine decodes images and video, and how many frames"},
	{"custom_logit_processor", "engines run it as a program"},
	{"guided_decoding_backend", "it selects backends with unbounded caches"},
	{GuardedFileURLs, "engines would read files on their machine"},
	{GuardedPrivateURLs, "engines would send requests to their private network"},
}

// GuardedParameters returns all guarded parameters in a fixed order.
func GuardedParameters() []GuardedParameter { return slices.Clone(guardedParameters) }

// guardedNames returns the values of balancer.allow_parameters.
func guardedNames() (names []string) {
	for _, p := range guardedParameters {
		names = append(names, p.Name)
	}
	return names
}
