// Package hybrid says how much of a prompt an engine can take from its prefix cache if
// its model has several attention groups: a length counts only if all groups can serve
// it. The rules are those of vLLM 0.33.0 (vllm/v1/core: single_type_kv_cache_manager.py
// and HybridKVCacheCoordinator in kv_cache_coordinator.py).
package hybrid
