"""What the rules test knows about single functions: the facts that stand in the headers as comments and not as types.

generate.py reads the declarations and asks here. A function that is named nowhere here is called with the usual arguments, refuses NULL
for every pointer, and is expected to do in each state what the types of its handles say.
"""

# Without rows: a blind call makes no sense. Name: the reason.
SKIP = {
    'shoal_init': 'takes over main; tests/death/ends.c and src/proc have it',
    'shoal_fail': 'takes a format',
    'shoal_capture_end': 'needs a GPU; src/tensor/capture_test.c has it',
    'shoal_capture_replay': 'needs a GPU; src/tensor/capture_test.c has it',
    'shoal_capture_destroy': 'needs a GPU; src/tensor/capture_test.c has it',
    'shoal_cuda_follow_stream': 'needs a stream of a GPU; src/tensor/dlpack_card_test.c has it',
    'shoal_cuda_precede_stream': 'needs a stream of a GPU; src/tensor/dlpack_card_test.c has it',
    'shoal_pool_create_on': 'for a pool whose workers a binding starts; src/proc/pool_test.c has it',
    'shoal_pool_submit': 'for a pool whose workers a binding starts; src/proc/pool_test.c has it',
    'shoal_pool_wake': 'for a pool whose workers a binding starts; src/proc/pool_test.c has it',
    'shoal_pool_next': 'for a pool whose workers a binding starts; src/proc/pool_test.c has it',
    'shoal_pool_lost': 'for a pool whose workers a binding starts; src/proc/pool_test.c has it',
    'shoal_worker_begin': 'for a pool whose workers a binding starts; src/proc/pool_test.c has it',
    'shoal_worker_take': 'for a pool whose workers a binding starts; src/proc/pool_test.c has it',
    'shoal_worker_answer': 'for a pool whose workers a binding starts; src/proc/pool_test.c has it',
    'shoal_worker_end': 'for a pool whose workers a binding starts; src/proc/pool_test.c has it',
}

# Called only with NULL and after the end began, where it must be refused: name: the reason.
HEAVY = {
    'shoal_train_run': 'trains a model',
    'shoal_mnist': 'reads 60,000 pictures',
    'shoal_fashion_mnist': 'reads 60,000 pictures',
    'shoal_mnist_at': 'reads 60,000 pictures',
    'shoal_fashion_mnist_at': 'reads 60,000 pictures',
    'shoal_data_verify': 'reads 54 MB',
    'shoal_data_copy': 'writes 12 MB',
    'shoal_fork': 'returns twice',
}

# Called in every state but with failing allocations, where each of them would start processes: name: the reason.
STARTS = ['shoal_spawn', 'shoal_spawn_with', 'shoal_process_start', 'shoal_process_start_program', 'shoal_pool_create',
          'shoal_pool_apply', 'shoal_pool_map']

# Parameters that may be NULL, as the header says.
NULLABLE = {
    'shoal_world_create': ['options'],                                # world.h: what is not named is 0
    'shoal_world_sweep': ['out_recovered'],
    'shoal_world_list': ['context'], 'shoal_cuda_tensors_list': ['context'], 'shoal_cuda_tensors_list_of': ['context'],
    'shoal_queue_create_with': ['options'],
    'shoal_barrier_wait': ['out_index'],
    'shoal_value_as_bytes': ['out_size'], 'shoal_arg_bytes': ['out_size'],
    'shoal_value_as_foreign': ['out_tag', 'out_size'],
    'shoal_value_format': ['buffer'], 'shoal_tensor_format': ['buffer'], 'shoal_module_format': ['buffer'],
    'shoal_set_log': ['hook', 'context'], 'shoal_set_interrupt': ['check', 'context'],
    'shoal_process_start': ['options'], 'shoal_process_start_program': ['options'],
    'shoal_process_join': ['out_status'],
    'shoal_spawn_with': ['options', 'results'],
    'shoal_child_begin': ['out_rank', 'out_args'], 'shoal_fork': ['options'],
    'shoal_fork_server_begin': ['hooks', 'out_rank', 'out_args'],
    'shoal_pool_create': ['options'],
    'shoal_from_memory': ['release', 'context'],
    'shoal_linear': ['b'], 'shoal_linear_relu': ['b'], 'shoal_conv2d': ['b', 'options'],
    'shoal_conv2d_pool_relu': ['b'],
    'shoal_layer_norm': ['weight', 'bias'],
    'shoal_lstm_cell': ['b_ih', 'b_hh'],
    'shoal_nll_loss_with': ['weight'],
    'shoal_backward_with': ['grad'],
    'shoal_tensor_set_grad': ['grad'],
    'shoal_tensor_add_hook': ['context', 'out_id'],
    'shoal_conv2d_create_with': ['options'],
    'shoal_sgd_create_with': ['options'], 'shoal_adam_create_with': ['options'],
    'shoal_adamw_create_with': ['options'], 'shoal_rmsprop_create_with': ['options'],
    'shoal_clip_grad_norm': ['out_norm'],
    'shoal_dataset_create': ['state'],
    'shoal_mnist_at': ['directory'], 'shoal_fashion_mnist_at': ['directory'],
    'shoal_data_verify': ['folder'], 'shoal_data_copy': ['from'],
    'shoal_subset_with': ['transform', 'context'],
    'shoal_loader_create_with': ['options'],
    'shoal_train_run': ['out_result'], 'shoal_train_defaults': ['options'],
    'shoal_evaluate': ['out_loss', 'out_accuracy'], 'shoal_evaluate_classes': ['out_loss', 'out_accuracy'],
}

# Arguments that make a call succeed where the usual ones do not: name: {parameter: the maker's name, or a C expression for a number}.
ARGUMENTS = {
    'shoal_as_strided': {'shape': 'shape1', 'strides': 'stride1', 'offset': '0'},
    'shoal_avg_pool2d': {'x': 'image', 'size': '1'}, 'shoal_max_pool2d': {'x': 'image', 'size': '1'},
    'shoal_avg_pool2d_with': {'x': 'image', 'options': 'pool2d_options'},
    'shoal_max_pool2d_with': {'x': 'image', 'options': 'pool2d_options'},
    'shoal_backward': {'t': 'loss'}, 'shoal_backward_with': {'t': 'loss', 'grad': 'scalar'},
    'shoal_cat': {'parts': 'tensor_array'}, 'shoal_stack': {'parts': 'tensor_array'},
    'shoal_condition_unlock': {'condition': 'condition_locked'}, 'shoal_condition_wait': {'condition': 'condition_locked'},
    'shoal_condition_notify': {'condition': 'condition_locked'},
    'shoal_condition_notify_all': {'condition': 'condition_locked'},
    'shoal_condition_mark_consistent': {'condition': 'condition_locked'},
    'shoal_lock_mark_consistent': {'lock': 'lock_locked'}, 'shoal_rlock_mark_consistent': {'rlock': 'rlock_locked'},
    'shoal_conv2d': {'x': 'image', 'w': 'kernel', 'b': 'vector1'},
    'shoal_conv2d_pool_relu': {'x': 'image', 'w': 'kernel', 'b': 'vector1'},
    'shoal_conv2d_create_with': {'size': 'ones2'},
    'shoal_cross_entropy': {'target': 'classes'}, 'shoal_cross_entropy_with': {'target': 'classes'},
    'shoal_nll_loss': {'target': 'classes'}, 'shoal_nll_loss_with': {'target': 'classes', 'weight': 'vector2'},
    'shoal_data_origin': {'name': 'text_mnist'}, 'shoal_data_scale': {'name': 'text_mnist'},
    'shoal_data_where': {'name': 'text_mnist', 'capacity': '1000'}, 'shoal_data_verify': {'name': 'text_mnist'},
    'shoal_data_copy': {'name': 'text_mnist'},
    'shoal_dataset_create': {'type': 'dataset_type'},
    'shoal_dataset_fetch': {'numbers': 'zeros', 'x': 'row12', 'y': 'class1'},
    'shoal_delivery_extend': {'time': '1'},
    'shoal_embedding': {'index': 'classes'},
    'shoal_empty': {'shape': 'shape1'}, 'shoal_zeros': {'shape': 'shape1'}, 'shoal_ones': {'shape': 'shape1'},
    'shoal_full': {'shape': 'shape1'}, 'shoal_from_data': {'shape': 'shape1', 'data': 'zeros'},
    'shoal_from_memory': {'shape': 'shape1', 'data': 'zeros'}, 'shoal_empty_shared': {'shape': 'shape1'},
    'shoal_env_create': {'name': 'text_cartpole'}, 'shoal_env_find': {'name': 'text_cartpole'},
    'shoal_env_register': {'type': 'env_type'}, 'shoal_env_step': {'env': 'env_begun'},
    'shoal_evaluate_classes': {'classes': '2'},
    'shoal_event_wait': {'event': 'event_set'},
    'shoal_expand': {'ndim': '2', 'shape': 'shape22'}, 'shoal_permute': {'ndim': '2', 'dims': 'dims10'},
    'shoal_future_get': {'timeout': 'SHOAL_SECONDS(5)'}, 'shoal_iterator_next': {'timeout': 'SHOAL_SECONDS(5)'},
    'shoal_gather': {'index': 'index'}, 'shoal_scatter_add': {'index': 'index'},
    'shoal_idx_read': {'path': 'path_idx'}, 'shoal_mnist_at': {'directory': 'path_mnist'},
    'shoal_fashion_mnist_at': {'directory': 'path_mnist'},
    'shoal_index_select': {'index': 'classes'}, 'shoal_one_hot': {'index': 'classes'},
    'shoal_item': {'t': 'scalar'},
    'shoal_layer_norm': {'weight': 'vector2', 'bias': 'vector2'},
    'shoal_linear': {'b': 'vector2'}, 'shoal_linear_relu': {'b': 'vector2'},
    'shoal_list_add': {'list': 'value_list'},
    'shoal_lock_unlock': {'lock': 'lock_locked'}, 'shoal_rlock_unlock': {'rlock': 'rlock_locked'},
    'shoal_logical_and': {'a': 'mask', 'b': 'mask'}, 'shoal_logical_or': {'a': 'mask', 'b': 'mask'},
    'shoal_logical_not': {'a': 'mask'},
    'shoal_lstm_cell': {'x': 'row12', 'h': 'row12', 'c': 'row12', 'w_ih': 'gates', 'w_hh': 'gates', 'b_ih': 'vector8', 'b_hh': 'vector8'},
    'shoal_block_find': {'address': 'zeros'}, 'shoal_block_open': {'id': '1234567890'},
    'shoal_block_make_private': {'block': 'block_pages'},
    'shoal_map_set': {'map': 'value_map'},
    'shoal_masked_fill': {'mask': 'mask'}, 'shoal_where': {'condition': 'mask'},
    'shoal_model_create': {'name': 'text_logistic'},
    'shoal_module_add_parameter': {'t': 'leaf'},
    'shoal_module_child': {'module': 'sequential', 'name': 'text_0'}, 'shoal_module_child_at': {'module': 'sequential', 'i': '0'},
    'shoal_module_create': {'type': 'module_type', 'settings': 'zeros'},
    'shoal_module_register': {'type': 'module_type'},
    'shoal_module_get': {'name': 'text_weight'},
    'shoal_module_load_state_dict': {'state': 'value_state_dict'},
    'shoal_npy_read': {'path': 'path_npy'}, 'shoal_safetensors_read': {'path': 'path_weights'},
    'shoal_weights_read': {'path': 'path_weights'},
    'shoal_optimizer_adopt': {'optimizer': 'optimizer_momentum', 'name': 'text_momentum'},
    'shoal_optimizer_next': {'optimizer': 'optimizer_momentum'},
    'shoal_pipe_recv': {'end': 'pipe_text'}, 'shoal_pipe_recv_packed': {'end': 'pipe_text'},
    'shoal_pipe_poll': {'end': 'pipe_text'},
    'shoal_pipe_recv_bytes': {'end': 'pipe_bytes', 'capacity': '1000'}, 'shoal_pipe_recv_message': {'end': 'pipe_bytes'},
    'shoal_pipe_send': {'value': 'value_string'}, 'shoal_pipe_send_bytes': {'size': '100'},
    'shoal_pool_map': {'list': 'value_list1'}, 'shoal_pool_map_async': {'list': 'value_list1'},
    'shoal_pool_imap': {'list': 'value_list1'},
    'shoal_pool_close': {'pool': 'pool_own'}, 'shoal_pool_terminate': {'pool': 'pool_own'},
    'shoal_pool_destroy': {'pool': 'pool_own'}, 'shoal_process_destroy': {'process': 'process_own'},
    'shoal_process_start_program': {'path': 'text_true', 'argv': 'argv_true', 'options': 'zeros'},
    'shoal_queue_get': {'queue': 'queue_text'}, 'shoal_queue_get_packed': {'queue': 'queue_text'},
    'shoal_queue_get_block': {'queue': 'queue_block'},
    'shoal_queue_get_bytes': {'queue': 'queue_bytes', 'capacity': '1000'}, 'shoal_queue_get_message': {'queue': 'queue_bytes'},
    'shoal_queue_get_tensor': {'queue': 'queue_tensor'}, 'shoal_queue_get_delivery': {'queue': 'queue_delivery'},
    'shoal_queue_put': {'value': 'value_string'}, 'shoal_queue_put_bytes': {'size': '100'},
    'shoal_queue_task_done': {'queue': 'queue_text'},
    'shoal_randint_': {'high': '2'},
    'shoal_reshape': {'shape': 'shape1'}, 'shoal_view': {'shape': 'shape1'},
    'shoal_scope_release': {'mark': '0'},
    'shoal_sequential_create': {'children': 'children'},
    'shoal_sparse_coo': {'indices': 'coo_indices', 'values': 'vector2', 'shape': 'shape1'},
    'shoal_sparse_csr': {'starts': 'starts', 'columns': 'class1', 'values': 'vector1'},
    'shoal_subset': {'numbers': 'zeros'}, 'shoal_subset_with': {'numbers': 'zeros'},
    'shoal_tensor_add_hook': {'t': 'leaf'}, 'shoal_tensor_at': {'ndim': '2', 'index': 'zeros'},
    'shoal_tensor_read': {'size': '16'}, 'shoal_tensor_to_dlpack': {'flags': '0'},
    'shoal_tensors_add': {'name': 'text_y'}, 'shoal_tensors_at': {'i': '0'}, 'shoal_tensors_name': {'i': '0'}, 'shoal_tensors_text_name': {'i': '0'},
    'shoal_train_method_find': {'name': 'text_sync'},
    'shoal_value_at': {'value': 'value_list1', 'i': '0'}, 'shoal_value_key_at': {'map': 'value_map1', 'i': '0'},
    'shoal_value_find': {'map': 'value_map1'}, 'shoal_value_copy': {'value': 'value_map1'},
    'shoal_value_equal': {'a': 'value_map1', 'b': 'value_map1'}, 'shoal_value_format': {'value': 'value_map1'},
    'shoal_value_count': {'value': 'value_map1'}, 'shoal_value_type': {'value': 'value_map1'},
    'shoal_value_object_kind': {'value': 'value_queue'}, 'shoal_value_destroy': {'value': 'value_map1'},
    'shoal_value_keep': {'value': 'value_map1'}, 'shoal_value_bytes': {'size': '100'}, 'shoal_value_foreign': {'size': '100'},
}

# NULL in gives NULL out, and nothing is recorded: the header says that NULL is allowed.
NULL_GIVES_NULL = {'shoal_scoped': ['t'], 'shoal_tensor_grad': ['t'], 'shoal_tensor_retain': ['tensor'], 'shoal_dataset_retain': ['set'],
                   'shoal_block_retain': ['block'], 'shoal_queue_retain': ['queue'], 'shoal_pipe_retain': ['pipe'],
                   'shoal_lock_retain': ['lock'], 'shoal_rlock_retain': ['rlock'], 'shoal_semaphore_retain': ['semaphore'],
                   'shoal_condition_retain': ['condition'], 'shoal_event_retain': ['event'], 'shoal_barrier_retain': ['barrier']}

# What a call takes away from its caller: always, or only when it succeeds. Values by their type, release and destroy by their name.
TAKES_ALWAYS = {'shoal_module_add_parameter': ['t'], 'shoal_module_add_buffer': ['t'], 'shoal_module_add_child': ['child'],
                'shoal_scoped': ['t'], 'shoal_sequential_create': ['children']}
TAKES_ON_SUCCESS = {'shoal_queue_give_block': ['block'], 'shoal_queue_give_message': ['message'], 'shoal_queue_give_tensor': ['t'],
                    'shoal_pipe_give_message': ['message'], 'shoal_tensor_from_dlpack': ['pack']}

# Tensors that are the caller's; all others belong to the scope, or to what they were read from.
OWN_TENSORS = ['shoal_empty', 'shoal_zeros', 'shoal_ones', 'shoal_full', 'shoal_scalar', 'shoal_arange', 'shoal_eye', 'shoal_from_data',
               'shoal_from_memory', 'shoal_empty_shared', 'shoal_empty_like', 'shoal_zeros_like', 'shoal_randperm',
               'shoal_tensor_from_dlpack', 'shoal_npy_read', 'shoal_idx_read', 'shoal_sparse_to_dense', 'shoal_dataset_labels',
               'shoal_tensor_retain', 'shoal_empty_on', 'shoal_full_on', 'shoal_from_data_on', 'shoal_empty_pinned']
BORROWED = r'^shoal_(value_as|arg)_|^shoal_module_child'  # what these return is not the caller's

# Outputs that are not the caller's to release.
BORROWED_OUTPUTS = {'shoal_lstm_cell': 'belong to the scope', 'shoal_child_begin': 'lives as long as the process',
                    'shoal_fork_server_begin': 'lives as long as the process'}

# What a call gives when all is well and it is not SHOAL_OK, or not a pointer: name: (code, reason).
WORKS = {
    'shoal_child_begin': ('SHOAL_ENOENT', 'this process was not started as a program'),
    'shoal_fork_server_begin': ('SHOAL_ENOENT', 'this process was not started as a fork server'),
    'shoal_child_end': ('SHOAL_ESTATE', 'this process was not started as a program'),
    'shoal_return': ('SHOAL_ESTATE', 'this is not a target'),
    'shoal_condition_wait': ('SHOAL_ETIMEDOUT', 'nobody notifies'),
    'shoal_pool_join': ('SHOAL_ESTATE', 'it was not closed'),
    'shoal_process_kill': ('SHOAL_ESTATE', 'it has ended'),
    'shoal_process_terminate': ('SHOAL_ESTATE', 'it has ended'),
    'shoal_process_signal': ('SHOAL_ESTATE', 'it has ended'),
    'shoal_world_create': ('SHOAL_ESTATE', 'this process is in a world'),
    'shoal_world_join': ('SHOAL_ESTATE', 'this process is in a world'),
    'shoal_cuda_tensors_list_of': ('SHOAL_ESTATE', 'this process is in a world'),
    'shoal_tensor_grad': ('NULL', 'there was no backward'),
    'shoal_empty_pinned': ('SHOAL_ENOENT', 'there is no GPU'),
    'shoal_block_find': ('SHOAL_ENOENT', 'the address is in no block'),
    'shoal_block_open': ('SHOAL_ENOENT', 'there is no such block'),
    'shoal_capture_begin': ('SHOAL_ENOENT', 'there is no GPU'),
    'shoal_cuda_count': ('SHOAL_ENOENT', 'there is no GPU'),
    'shoal_cuda_info_get': ('SHOAL_ENOENT', 'there is no GPU'),
    'shoal_cuda_memory_get': ('SHOAL_ENOENT', 'there is no GPU'),
    'shoal_cuda_stream': ('SHOAL_ENOENT', 'there is no GPU'),
    'shoal_tensor_copy_async': ('SHOAL_EINVAL', 'neither tensor is pinned'),
    'shoal_sparse_starts': ('NULL', 'COO has none'),
}

# Calls without a shared handle that need the world: after the end began they are refused, and after leaving they make another world.
NEEDS_WORLD = ['shoal_barrier_create', 'shoal_block_create', 'shoal_block_create_zeroed', 'shoal_block_find',
               'shoal_block_open', 'shoal_condition_create', 'shoal_event_create',
               'shoal_lock_create', 'shoal_rlock_create', 'shoal_semaphore_create', 'shoal_queue_create', 'shoal_queue_create_with',
               'shoal_pipe_create', 'shoal_message_create', 'shoal_empty_shared', 'shoal_tensor_share', 'shoal_module_share',
               'shoal_sparse_share', 'shoal_value_tensor', 'shoal_value_module', 'shoal_value_sparse', 'shoal_value_dataset',
               'shoal_module_state_dict', 'shoal_process_start', 'shoal_process_start_program', 'shoal_spawn', 'shoal_spawn_with',
               'shoal_pool_create', 'shoal_fork', 'shoal_world_create', 'shoal_world_join', 'shoal_world_info_get', 'shoal_world_sweep',
               'shoal_world_trim', 'shoal_world_audit', 'shoal_cuda_tensors_list', 'shoal_cuda_tensors_list_of', 'shoal_train_run',
               'shoal_mnist', 'shoal_fashion_mnist', 'shoal_mnist_at', 'shoal_fashion_mnist_at']

# Outputs that are written although the call failed: name: the reason.
WRITES_AND_FAILS = {'shoal_spawn_with': 'process.h: on failure all results are NULL'}

# Where a state's answer differs from what the types say, by design: state: {name: (answer, reason)}. The answers: a code; WORKS, as
# when all is well.
COUNTS = ('WORKS', 'counts references of this process, in its private memory')
OF_THE_HANDLE = ('WORKS', 'is told by the private handle')
STAYS = ('WORKS', 'what the process holds stays until it is gone, so that pointers of atexit handlers and C++ statics are good')
SAME_QUEUE = ('SHOAL_ESTATE', 'the value holds a queue')
PARENTS_LOCK = ('SHOAL_EPERM', 'what the parent has locked is locked by the parent')
RETAINS = ['barrier', 'block', 'condition', 'event', 'lock', 'pipe', 'queue', 'rlock', 'semaphore']
HELD = ['tensor', 'sparse', 'module', 'dataset']  # what is made of a value's shared object when it is read

DESIGN = {
    'left': {
        **{f'shoal_{t}_retain': COUNTS for t in RETAINS},
        **{f'shoal_{reader}_{t}': ('SHOAL_ESTATE', 'the value holds the description, which is shared')
           for t in HELD for reader in ('value_as', 'arg')},
        'shoal_module_load_state_dict': ('SHOAL_ESTATE', 'the state dict holds shared tensors'),
        'shoal_value_copy': SAME_QUEUE,
        'shoal_barrier_is_broken': ('WORKS', 'true: no wait will succeed'),
        'shoal_future_ready': ('WORKS', 'true: shoal_future_get does not wait, it is refused'),
        'shoal_process_join': ('WORKS', 'the status was read before'),
        'shoal_process_pid': OF_THE_HANDLE, 'shoal_process_sentinel': OF_THE_HANDLE, 'shoal_pool_losses': OF_THE_HANDLE,
        'shoal_world_create': ('SHOAL_OK', 'the process is in no world'),
        'shoal_world_join': ('SHOAL_ENOENT', 'there is no such world'),
        'shoal_cuda_tensors_list_of': ('SHOAL_ENOENT', 'there is no such world'),
    },
    'ended': {
        **{f'shoal_{t}_retain': COUNTS for t in RETAINS},
        **{f'shoal_{reader}_{t}': ('SHOAL_ESTATE', 'the value holds the description, which is shared')
           for t in HELD for reader in ('value_as', 'arg')},
        'shoal_module_load_state_dict': ('SHOAL_ESTATE', 'the state dict holds shared tensors'),
        'shoal_value_copy': SAME_QUEUE,
        'shoal_block_data': STAYS, 'shoal_block_size': STAYS, 'shoal_block_id': STAYS,
        'shoal_message_data': STAYS, 'shoal_message_size': STAYS,
        'shoal_barrier_is_broken': ('WORKS', 'true: no wait will succeed'),
        'shoal_future_ready': ('WORKS', 'true: shoal_future_get does not wait, it is refused'),
        'shoal_process_join': ('WORKS', 'the status was read before'),
        'shoal_process_pid': OF_THE_HANDLE, 'shoal_process_sentinel': OF_THE_HANDLE, 'shoal_pool_losses': OF_THE_HANDLE,
        'shoal_fashion_mnist': ('SHOAL_ENOENT', 'the data set is not there, and that is seen first'),
    },
    'forked': {
        'shoal_pipe_retain': COUNTS,
        'shoal_condition_notify': PARENTS_LOCK, 'shoal_condition_notify_all': PARENTS_LOCK,
        'shoal_condition_unlock': PARENTS_LOCK, 'shoal_condition_wait': PARENTS_LOCK, 'shoal_rlock_unlock': PARENTS_LOCK,
        'shoal_condition_mark_consistent': PARENTS_LOCK, 'shoal_lock_mark_consistent': PARENTS_LOCK,
        'shoal_rlock_mark_consistent': PARENTS_LOCK,
        'shoal_delivery_done': ('SHOAL_ESTATE', "the delivery is the parent's"),
        'shoal_delivery_return': ('SHOAL_ESTATE', "the delivery is the parent's"),
        'shoal_delivery_extend': ('SHOAL_ESTATE', "the delivery is the parent's"),
        'shoal_future_ready': ('WORKS', 'true: shoal_future_get does not wait, it is refused'),
        'shoal_process_join': ('WORKS', 'the status was read before'),
        'shoal_process_kill': ('SHOAL_ESTATE', 'it has ended'), 'shoal_process_terminate': ('SHOAL_ESTATE', 'it has ended'),
        'shoal_process_signal': ('SHOAL_ESTATE', 'it has ended'),
        'shoal_process_pid': OF_THE_HANDLE, 'shoal_process_sentinel': OF_THE_HANDLE, 'shoal_pool_losses': OF_THE_HANDLE,
    },
}
