package engine

import "time"

// measuredProfiles returns machines with eight GPUs that serve large models, fitted by FitMeasurements
// to the measurements of Splitwise (Patel et al., ISCA 2024; Mutinifni/splitwise-sim, MIT licence):
// batches of 1 to 64 prompts of 512 tokens and single prompts of 128 to 8192, tensor parallel 8.
//
// Their KV memory is computed: nine tenths of eight times 80 GB (vLLM's usual gpu_memory_utilization;
// with eight tenths bloom-176b would have less memory than its measured batch of 64 needs), minus the
// weights at 2 bytes each and 0.39 GB per GPU for other data, as for h100Llama, in tokens of layers x
// KV heads x head dimension x 2 (K and V) x 2 bytes:
//   - llama2-70b: 69.0e9 weights are 138 GB, a token 80 x 8 x 128 x 2 x 2 = 327,680
//     bytes: (576 - 138 - 3.1) GB hold 1,327,000 tokens;
//   - bloom-176b: 176.2e9 weights are 352.5 GB, and with all 112 heads kept a token
//     takes 70 x 112 x 128 x 2 x 2 = 4,014,080 bytes, twelve times as much:
//     (576 - 352.5 - 3.1) GB hold 54,900 tokens.
//
// Chunks have 2048 tokens: larger prefills had a lower measured token rate, and one long prompt and
// many short ones take different times there. Batches beyond 64 and contexts beyond 37,000 tokens were
// not measured: the last segment and the slope are extrapolated.
func measuredProfiles() []Profile {
	return []Profile{
		largeProfile("a100-llama2-70b", "eight NVIDIA A100 (80 GB), tensor parallel 8, Llama-2-70B, 1,327,000 KV tokens", 1_327_000, 216*time.Nanosecond,
			micros(128, 65347, 256, 66757, 512, 93076, 1024, 160097, 2048, 283109, 4096, 712437, 8192, 1797346, 16384, 3524541, 32768, 7553993),
			micros(1, 44748, 2, 44748, 4, 45294, 8, 45470, 16, 48446, 32, 49038, 64, 63647)),
		largeProfile("h100-llama2-70b", "eight NVIDIA H100 (80 GB), tensor parallel 8, Llama-2-70B, 1,327,000 KV tokens", 1_327_000, 113*time.Nanosecond,
			micros(128, 54149, 256, 54149, 512, 54149, 1024, 77399, 2048, 134703, 4096, 380846, 8192, 828243, 16384, 1551726, 32768, 2936330),
			micros(1, 30324, 2, 30324, 4, 31526, 8, 31984, 16, 33127, 32, 36541, 64, 46004)),
		largeProfile("a100-bloom-176b", "eight NVIDIA A100 (80 GB), tensor parallel 8, BLOOM-176B, 54,900 KV tokens", 54_900, 316*time.Nanosecond,
			micros(128, 79668, 256, 99164, 512, 174492, 1024, 288010, 2048, 534489, 4096, 1335115, 8192, 3551405, 16384, 5782003, 32768, 11251828),
			micros(1, 48934, 2, 49627, 4, 50276, 8, 51499, 16, 54432, 32, 59563, 64, 84949)),
		largeProfile("h100-bloom-176b", "eight NVIDIA H100 (80 GB), tensor parallel 8, BLOOM-176B, 54,900 KV tokens", 54_900, 173*time.Nanosecond,
			micros(128, 48284, 256, 51179, 512, 75993, 1024, 131933, 2048, 245870, 4096, 656083, 8192, 1419989, 16384, 2521909, 32768, 4996451),
			micros(1, 35998, 2, 36713, 4, 37504, 8, 37504, 16, 39051, 32, 42662, 64, 57462)),
	}
}

// largeProfile returns a profile of measuredProfiles.
func largeProfile(name, description string, kv int, perKV time.Duration, prefill, decode Curve) Profile {
	o := DefaultFitOptions()
	return Profile{
		Name: name, Description: description, KVTokens: kv, DecodePerKVToken: perKV, Prefill: prefill, Decode: decode,
		ChunkTokens: o.ChunkTokens, MaxRunning: o.MaxRunning, ReservePerMille: o.ReservePerMille,
	}
}

// micros returns a curve from sizes and times in microseconds.
func micros(sizesAndTimes ...int) Curve {
	c := make(Curve, len(sizesAndTimes)/2)
	for i := range c {
		c[i] = Knot{sizesAndTimes[2*i], time.Duration(sizesAndTimes[2*i+1]) * time.Microsecond}
	}
	return c
}
