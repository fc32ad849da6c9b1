package service

import "slices"

// GuardedParameter is something in a request that balancers refuse unless
// balancer.allow_parameters names it: engines pass it on to code that it can crash, or
// that it can have read files or reach hosts.
type GuardedParameter struct {
	Name string
	// Reason says what an engine does with it, for an error.
	Reason string
}

// The guarded things that are no parameters of their own, but addresses of images,
// sounds and films inside messages.
const (
	GuardedFileURLs    = "file_urls"
	GuardedPrivateURLs = "private_urls"
)

// guardedParameters is the one table of them. docs/security.md has the advisories.
var guardedParameters = []GuardedParameter{
	{"prompt_embeds", "engines load it as a tensor, which has crashed them"},
	{"image_embeds", "engines load it as a tensor, which has crashed them"},
	{"audio_embeds", "engines load it as a tensor, which has crashed them"},
	{"kv_transfer_params", "it tells an engine which hosts to fetch KV memory from"},
	{"ec_transfer_params", "it tells an engine which hosts to fetch encoder memory from"},
	{"bootstrap_host", "it tells an engine which host to fetch KV memory from"},
	{"bootstrap_port", "it tells an engine which host to fetch KV memory from"},
	{"bootstrap_room", "it tells an engine which host to fetch KV memory from"},
	{"vllm_xargs", "it reaches what plugins and KV connectors of an engine read"},
	{"chat_template", "engines run it as a program, which need not end"},
	{"mm_processor_kwargs", "it sets how much memory an engine takes for an image"},
	{"media_io_kwargs", "it sets how an engine reads images and films, and how many pieces of them"},
	{"custom_logit_processor", "engines run it as a program"},
	{"guided_decoding_backend", "it chooses software that an engine may not bound"},
	{GuardedFileURLs, "engines read files of their machine"},
	{GuardedPrivateURLs, "engines ask hosts inside their network"},
}

// GuardedParameters is the table, in the order in which documentation has it.
func GuardedParameters() []GuardedParameter { return slices.Clone(guardedParameters) }

// guardedNames are the words of balancer.allow_parameters.
func guardedNames() (names []string) {
	for _, p := range guardedParameters {
		names = append(names, p.Name)
	}
	return names
}
